"""File formats of tasks: locating and reading splits."""
