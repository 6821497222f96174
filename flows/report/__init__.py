"""Stages `report` and `submission`, the last of a run: a page, and GLUE's files; record books."""
