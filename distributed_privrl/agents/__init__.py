"""Offline reinforcement learning agents: networks, pure losses and plain training loops."""
