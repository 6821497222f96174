"""The family deberta."""
