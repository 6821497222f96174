"""Selection: which documents a corpus keeps, by a trained quality filter and by their meaning."""
