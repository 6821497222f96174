"""MediaWiki dumps of any language, and what WikiExtractor has made of them."""
