"""Metrics as the papers name them, a file a kind of task: well-kept libraries' where there are such."""
