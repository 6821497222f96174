"""`cloze ui`: Prefect's server and worker, MLflow's server and our own page, started, watched, restarted and ended together."""
