"""Stages `report` and `submission`, the last of a run (an HTML page; GLUE's files); record books."""
