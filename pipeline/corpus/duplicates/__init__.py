"""Deduplication: from signatures of documents to a plan of the shards.

`signatures.py` hashes a document, `search.py` compares the hashes, `plan.py` applies the rules and
assigns shards. `distributed.py` finds the documents to compare in a larger corpus. Read `plan.py`
first.
"""
