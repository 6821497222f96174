"""Readers of MediaWiki dumps in any language, and of WikiExtractor's output."""
