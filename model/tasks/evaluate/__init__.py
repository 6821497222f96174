"""Stage evaluate: config, stage and evaluation."""
