"""Stage vocab: a corpus in, a trained, imported or extended tokenizer out. Read `stage.py`."""
