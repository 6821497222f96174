"""One start of a run: session, status file, cancellation, cleanup of zombie runs.

Read `session.py` first.
"""
