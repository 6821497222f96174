"""Stage corpus: reads raw text in any format, writes clean and deduplicated Arrow shards."""
