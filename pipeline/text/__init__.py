"""Pure functions on a `Document`: clean, filter, split into sentences, find duplicates."""
