"""The family longformer."""
