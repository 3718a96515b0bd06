"""The only folder that imports Ray: executor, sessions."""
