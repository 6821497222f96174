"""Cleaning steps: a raw document enters, a cleaned one leaves, or the reason why it is dropped.

Read `base.py` (the interface) and `chain.py` (the table of steps, in order) first.
"""
