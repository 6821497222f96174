"""Prefect flows and their deployments; they call the same functions as runs without Prefect."""
