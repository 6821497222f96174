"""From Arrow shards to a trained encoder. Imports torch, never Beam or Prefect."""
