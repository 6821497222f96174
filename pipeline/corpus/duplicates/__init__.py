"""Deduplication: from signatures of documents to a plan of the shards.

`signatures.py` hashes a document, `search.py` compares the hashes, `plan.py` applies the rules and
assigns shards in one process, `distributed/` does it for larger corpora. `semantic_*.py` are the
stage `semdedup`, which compares embeddings. Read `plan.py` first.
"""
