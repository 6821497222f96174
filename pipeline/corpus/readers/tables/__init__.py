"""Readers of records with fields: JSON lines, Parquet, Arrow."""
