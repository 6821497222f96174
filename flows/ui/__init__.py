"""`cloze ui`: Prefect, its worker, MLflow and the dashboard; or that page alone."""
