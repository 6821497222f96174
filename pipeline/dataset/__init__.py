"""From documents to training examples: tokenized documents, pairs of segments, rows, masks. Pure numpy, random numbers from keys."""
