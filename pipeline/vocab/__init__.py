"""Stage vocab: a corpus in, a trained, imported or extended tokenizer out. See `stage.py`."""
