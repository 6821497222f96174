"""Building blocks of model families. `batch.py` lists the fields of a batch; read it first.

Shapes: B batch, L length, D model, N heads, H per head, V vocabulary, M masked positions.
"""
