"""What the data engine costs: each question a command, each figure a ratio taken in one run. See
`python -m benchmarks.data --help`.
"""
