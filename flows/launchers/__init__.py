"""Who starts the ranks of a stage, on this machine or on many, and how their progress, outcome and errors come back."""
