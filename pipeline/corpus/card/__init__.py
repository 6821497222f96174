"""The data card of a corpus: what it holds, where it came from, and what was dropped on the way, as JSON and as a page."""
