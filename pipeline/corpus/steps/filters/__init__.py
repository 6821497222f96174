"""Filters: steps that drop documents, or lines of them."""
