"""Metrics with the papers' names, one module per task kind, from libraries where possible."""
