"""Differentially private offline reinforcement learning, with an epsilon that is true."""

from distributed_privrl.core.threads import cap_threads

cap_threads()
