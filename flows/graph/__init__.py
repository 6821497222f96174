"""A run as a graph of stages: its config, its plan, and the order of execution."""
