"""The prose in the docstrings of installed Python packages."""
