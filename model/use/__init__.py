"""Inference from a checkpoint: prediction commands, scoring, embedding, merging, perplexity."""
