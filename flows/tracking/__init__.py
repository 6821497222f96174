"""MLflow records a run, and can never stop or slow it: records go to a local spool, another process sends them."""
