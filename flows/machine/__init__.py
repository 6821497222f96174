"""The CPU cores and GPUs of this host: slots that nodes take, and rules for retries."""
