"""What strangers' bytes do: every input ends well, or in one line with a documented exit code."""
