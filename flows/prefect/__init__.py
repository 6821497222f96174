"""Prefect flows over the same functions that run without Prefect, and the servers of `cloze ui`."""
