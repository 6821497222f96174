"""Filters that are learned from examples: what they see of a text, how they are trained, and the stage that does it."""
