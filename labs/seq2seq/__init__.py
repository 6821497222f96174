"""Encoder-decoders: models that write a text for a text."""
