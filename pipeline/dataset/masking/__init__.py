"""Masking: one pure function, `draw.sample_masks`, draws stored masks and dynamic masks.

Rows, candidates and budgets enter, masks leave. Read `registry.py`, then `candidates.py`.
"""
