"""Pages that MediaWiki has rendered, in Wikimedia Enterprise's dumps, and pages of any other site."""
