"""Stage evaluate: config, the stage, and the evaluation."""
