"""Data card: `statistics.py` measures the kept documents by shard, `card.py` writes the card."""
