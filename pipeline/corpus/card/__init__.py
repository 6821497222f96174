"""Data card of a corpus: contents, origins and drops, as JSON and as a page.

`statistics.py` measures each shard as it is written, `collect.py` combines the results of all steps
into `card.json`, `render.py` draws `card.html`. Read `collect.py` first.
"""
