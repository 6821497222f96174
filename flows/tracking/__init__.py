"""MLflow tracking through a local spool that another process sends, so it never delays a run.

Read `spool.py` first: what a run appends. `spool_sender.py` sends it, and waits while MLflow is
down; `mlflow_writer.py` is its calls to MLflow.
"""
