"""Inside: attention maps, heads, layers and probes of a checkpoint; pruning by what they show."""
