"""From sources to intermediate files: which slices of files to read, and their cleaned text."""
