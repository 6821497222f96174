"""The family distilbert."""
