"""Foundations of all packages: stages, artifacts, storage, configs, errors, worker processes."""
