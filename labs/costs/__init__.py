"""What a model costs in use: latency, energy and size; limits on them in the nightly gate; int8."""
