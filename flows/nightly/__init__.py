"""Nightly evaluation: new checkpoints, suite, promotion gate, champion, trend page."""
