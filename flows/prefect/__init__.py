"""Prefect flows over the same functions that run without Prefect, and their deployments."""

from pathlib import Path

PREFECT_YAML = Path(__file__).parent.parent.parent / "prefect.yaml"
