"""Pretraining: dataset shards to a trained encoder, exactly resumable, on any number of ranks.

Read `stage.py` and `pretraining.py` first.
"""
