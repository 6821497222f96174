"""Stage corpus: raw text in any format in, clean documents without copies out, in Arrow shards."""
