"""Longformer: rows of thousands of tokens, by windows of attention and global tokens."""
