"""Retrieval: search in a corpus, answers from it, bi-encoders, and pretraining with passages."""
