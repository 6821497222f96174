"""Building blocks of model families.

Shapes: B batch, L length, D model, N heads, H per head, V vocabulary, M masked positions.
"""
