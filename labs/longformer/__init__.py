"""Longformer: RoBERTa for long rows, with sliding windows and global tokens."""
