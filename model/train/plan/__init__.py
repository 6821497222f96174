"""Estimates of memory and time, for `cloze plan-training`, graphs and micro-batches."""
