"""Crawled pages: WARC and WET files."""
