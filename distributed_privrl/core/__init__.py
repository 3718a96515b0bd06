"""Errors, checks, strict configuration, random streams, files and the executor protocol."""
