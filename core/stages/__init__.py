"""Stages: their definition, their execution, and the options of an execution.

A config and input artifacts enter, an output artifact leaves. Read `stage.py`, then `execute.py`.
"""
