"""Evaluation: a fine-tuned checkpoint and a labelled (or unlabelled) set -> metrics and a prediction file."""
