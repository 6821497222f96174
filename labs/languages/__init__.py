"""Languages: one model of many, and its scores by language."""
