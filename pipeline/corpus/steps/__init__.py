"""Cleaning steps between reader and deduplication: pure functions on documents, one module each."""
