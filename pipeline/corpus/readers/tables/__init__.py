"""Records with fields: JSON lines, Parquet, Arrow."""
