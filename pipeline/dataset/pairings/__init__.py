"""Pairings: documents to segments. They cut text into rows, and relate the two halves of a row."""
