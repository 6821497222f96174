"""`cloze ui`: supervises Prefect's server and worker and MLflow's server; serves the dashboard."""
