"""Hugging Face directories: import, export, and comparison with transformers."""
