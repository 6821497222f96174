"""Inference from a checkpoint: the door for verbs, fill-mask, scores, merging."""
