"""Arrow shards to a trained encoder. Knows torch; never Beam or Prefect."""
