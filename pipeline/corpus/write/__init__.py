"""From intermediate files to corpus shards: mixture, order and Arrow files.

`mixing.py` chooses documents, `write.py` writes shards by the plan, `shards.py` is what later
stages read. Read `write.py` first.
"""
