"""The family electra."""
