"""From dataset shards to batches: memory-mapped rows, a sampler without state, the collator, the prefetch thread."""
