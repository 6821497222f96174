"""Pairings: they cut documents into the segments of rows, and relate the two halves of a row.

Tokenized documents enter, `Segments` leave. Read `registry.py`, then `segments.py`.
"""
