"""Raw text to Arrow shards. Knows Beam; never torch, deepspeed, prefect or mlflow."""
