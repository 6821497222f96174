"""Artifacts on a disk or in an object store: manifests, fingerprints, locks, claims, checkpoints.

Read `artifact.py` first. Who may write one is in `claim.py` and `fence.py`, by the locks of
`lock.py`.
"""
