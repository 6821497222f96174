"""Ways to faster steps on a GPU that no GPU has measured yet. See README.md."""
