"""What holds exactly in real rows, and whether synthetic rows keep to it."""
