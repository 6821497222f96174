"""Inference from a checkpoint, one file a verb."""
