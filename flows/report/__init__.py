"""The last stage: one self-contained page about a run."""
