"""The files that tasks come in, a file a format: where a split lies, and what stands in it."""
