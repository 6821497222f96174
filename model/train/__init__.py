"""Pretraining: dataset shards in, a trained encoder out; exact, resumable, and the same on any number of ranks to rounding."""
