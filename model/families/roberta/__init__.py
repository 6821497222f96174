"""The family roberta."""
