"""Deduplication: from signatures of documents to a plan of the shards.

`signatures.py` hashes a document, `search.py` compares the hashes, `plan.py` applies the rules and
assigns shards. `distributed.py` finds the documents to compare in a larger corpus. `semantic_*.py`
are the stage `semdedup`, which compares embeddings. Read `plan.py` first.
"""
