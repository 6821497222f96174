"""A run as a graph of stages: its config, its plan, and how it is run."""
