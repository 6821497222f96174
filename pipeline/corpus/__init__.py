"""Stage corpus: reads raw text in any format, writes clean and deduplicated Arrow shards.

    sources -> read/ (with readers/ and steps/) -> intermediate files and signatures
            -> duplicates/ -> plan: the shard of every kept document
            -> write/ -> corpus-NNNNN-of-NNNNN.arrow; card/ -> card.json, card.html

Read `stage.py` first: it runs these steps in order. `explain.py` shows them for one document.
"""
