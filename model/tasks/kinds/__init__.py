"""Task kinds: reading, encoding, network, loss, decoding and metrics of each."""
