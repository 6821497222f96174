"""Docstrings of installed packages: a source of texts at hand, and a task made of it."""
