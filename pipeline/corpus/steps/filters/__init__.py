"""Cleaning steps that drop documents or lines by rules; see `steps/base.py` for the interface."""
