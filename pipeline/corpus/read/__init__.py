"""From sources to intermediate files: which slices of files to read, and their cleaned text.

`sources.py` lists and groups the slices, `read_and_clean.py` reads a group and runs the cleaning
steps, `intermediate.py` defines the files. Read `read_and_clean.py` first.
"""
