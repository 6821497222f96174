"""Model families: one module and one row of `cloze.model.families.registry` per family.

Read `registry.py` first, then `distilbert.py`, the shortest family. No families are: `config`,
`pretraining` and `models` (what all share), `hub_format` and `key_map` (their Hugging Face form)
and `pruned` (what pruning leaves, with all heads again).
"""
