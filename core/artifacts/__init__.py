"""Artifacts on a disk or in an object store: manifests, fingerprints, locks, claims, checkpoints.

Read `artifact.py` first.
"""
