"""Metrics of trainings for TensorBoard and Weights & Biases; MLflow has them without this lab."""
