"""The night: checkpoints that are new, the suite on each, the gate, the champion, and the trend page."""
