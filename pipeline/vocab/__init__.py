"""Stage vocab: a corpus in, a tokenizer out: trained, imported, or extended; measured."""
