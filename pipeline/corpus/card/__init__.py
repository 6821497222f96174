"""Data card of a corpus: contents, origins and drops, as JSON and as a page."""
