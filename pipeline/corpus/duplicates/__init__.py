"""Deduplication: from signatures of documents to a plan of the shards.

`signatures.py` hashes a document, `search.py` compares the hashes, `rules.py` says who is dropped.
`plan.py` plans the shards; `partitions.py` divides a larger corpus. Read `plan.py` first.
"""
