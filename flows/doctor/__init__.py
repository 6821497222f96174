"""`cloze doctor`: is this machine fit, is all well with what runs on it, and what can be mended.

A check is a function that returns findings. A finding that is not fine says in a sentence what to do; where Cloze can do that itself
without touching anything that is not its own, it brings a function that does, which `--fix` calls. Then the check is made again: only
what it does not find any more is mended.
"""
