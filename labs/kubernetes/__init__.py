"""Kubernetes: `manifest.py` describes a TrainJob of Kubeflow, `launcher.py` follows it."""
