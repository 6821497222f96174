"""Prefect flows and the `cloze` command; the only place that knows every stage."""
