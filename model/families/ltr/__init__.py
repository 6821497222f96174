"""The family ltr."""
