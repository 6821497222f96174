"""The family bert."""
