"""Files of the corpus: those between its steps, and its shards."""
