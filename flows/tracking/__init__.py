"""MLflow tracking through a local spool that another process sends, so it never delays a run."""
