"""What a training is: its input, its parts, and its progress. Below engines, steps and loop."""
