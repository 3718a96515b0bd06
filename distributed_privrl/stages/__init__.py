"""The run: what a method declares, and the one order in which it happens and is paid for."""
