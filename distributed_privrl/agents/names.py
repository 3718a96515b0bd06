"""Names of the agents, for whoever must not wait for torch."""

AGENTS_FOR = {
    "Box": ("bc", "cql", "edac", "iql", "td3bc"),
    "Discrete": ("bc", "discrete_bcq", "discrete_cql"),
}
"""Names of the algorithms that know an action space."""
