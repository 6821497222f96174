"""Checkpoints of a training: saving, trainer state, initial weights, further phases."""
