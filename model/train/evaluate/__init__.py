"""Evaluation during training: loss and accuracy on held-out rows."""
