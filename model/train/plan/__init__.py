"""Estimates of memory and time, for graphs, micro-batches and plans of trainings."""
