"""The training loop: batches, steps, triggers and rollback.

A `TrainSpec` (hyperparameters, model, batch source) enters; log entries and checkpoints leave. Read
`loop.py` first.
"""
