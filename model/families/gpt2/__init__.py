"""The family gpt2."""
