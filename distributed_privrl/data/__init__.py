"""Trajectories and transitions: encoding, scaling, storage, shards, fingerprint, import, export."""
