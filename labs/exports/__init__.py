"""Further forms of `export`."""
