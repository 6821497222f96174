"""`cloze ui`: Prefect, its worker, MLflow and the dashboard. `cloze dashboard`: that page alone."""
