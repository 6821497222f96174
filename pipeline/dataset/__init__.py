"""Documents to training examples: tokens, segments, rows, masks. Numpy, keyed random numbers."""
