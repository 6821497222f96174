"""The family modern."""
