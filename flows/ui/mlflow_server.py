"""`python -m cloze.flows.ui.mlflow_server OPTION …`: MLflow's server on a whole database."""

from __future__ import annotations

import os
import runpy
import sys

from cloze.flows.tracking.spool_state import connect

if __name__ == "__main__":
    connect(os.environ["MLFLOW_BACKEND_STORE_URI"])
    sys.argv = ["mlflow", "server", *sys.argv[1:]]
    runpy.run_module("mlflow", run_name="__main__", alter_sys=True)
