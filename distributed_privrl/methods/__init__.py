"""The methods of the papers, one folder each, independent of each other."""
