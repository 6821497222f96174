"""Distributed deduplication: the plan of a corpus too large for one process, with the same result.

    screen      a shuffle finds documents that share a key, an exact hash or a band
                (`FindCandidates`); the driver compares them as it compares a small corpus
    figures     counts of kept and dropped documents, by block (`Figures`)
    place       the shard of each document, by a second shuffle (`AssignShards`)

Messages are packed arrays addressed by small numbers. A block sends each value once: a value shared
by a million documents is one record per block. Read `search.py` first.
"""
