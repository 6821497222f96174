"""Start of a stage's ranks on one or many hosts, and the return of their progress and errors.

Read `protocol.py` first, then `coordinator.py`.
"""
