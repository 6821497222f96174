"""Batches from dataset shards: memory-mapped rows, stateless sampler, collator, prefetch thread."""
