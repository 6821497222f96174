"""The family spanbert."""
