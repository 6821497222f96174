"""The family megatron-bert."""
