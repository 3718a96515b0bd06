"""PriMORL: a policy learned inside a private ensemble of dynamics models (PriMORL)."""
