"""XLNet: permutation language modelling with two-stream attention."""
