"""Launcher for Kubernetes: `manifest.py` describes a TrainJob, `launcher.py` follows it."""
