"""Expert-level privacy: stable prefixes of many experts, and selective DP-SGD (expert-level DP)."""
