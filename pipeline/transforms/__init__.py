"""Thin Beam PTransforms around the pure functions, and the way a Beam pipeline is run."""
