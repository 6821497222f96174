"""Raw text to Arrow shards. Imports Beam, but never torch, deepspeed, prefect or mlflow."""
