"""Stages `report` and `submission`, the last of a run: an HTML page, and the files for GLUE."""
