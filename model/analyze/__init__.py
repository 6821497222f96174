"""Looking inside checkpoints: attention maps, heads, layers and probes; and pruning by what was
learned.
"""
