"""Relations: a label for two marked entities of a text, or of a pair of texts."""
