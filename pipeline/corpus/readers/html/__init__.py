"""Reader of rendered HTML: Wikimedia Enterprise dumps, and pages of any site."""
