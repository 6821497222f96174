"""Hugging Face directories: read, written, and compared with ours."""
