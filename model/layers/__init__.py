"""Blocks that families are assembled from. Shapes: B batch, L length, D model, N heads, H per head, V vocabulary, M masked."""
