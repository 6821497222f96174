"""The family albert."""
