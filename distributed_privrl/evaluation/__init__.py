"""What synthetic data are worth: fidelity, returns of agents trained on them, reports."""
