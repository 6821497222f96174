"""`python -m cloze.flows.ui.mlflow_server ARGUMENTS`: `mlflow server` that asks for the login.

MLflow's own login keeps a database of users. Its plugins for other logins must be installed as
packages, so the application is replaced in the command that starts uvicorn. The database is made
whole before the server's processes open it.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from starlette.types import ASGIApp

from cloze.core.accounts import share
from cloze.core.errors import ClozeError
from cloze.flows.tracking import database
from cloze.flows.tracking.spool_state import connect
from cloze.flows.ui.login import LoginMiddleware


def application() -> ASGIApp:
    """Return MLflow's application behind the login; uvicorn calls it."""
    from mlflow.server.fastapi_app import app

    return LoginMiddleware(app, os.environ["PREFECT_SERVER_API_AUTH_STRING"])


def main(arguments: list[str]) -> None:
    uri = os.environ["MLFLOW_BACKEND_STORE_URI"]
    if path := database.path_of(uri):
        share(path.parent)  # runs of other accounts record there, too
    connect(uri)
    from mlflow import cli, server

    build = server._build_uvicorn_command

    def command(*given: Any) -> list[str]:
        options, host, port, workers, _, env_file, _ = given
        name = f"{__spec__.name if __spec__ else __name__}:application"
        built: list[str] = build(options, host, port, workers, name, env_file, True)
        return ["cloze.flows.ui.timed_protocol" if word == "uvicorn" else word for word in built]

    server._build_uvicorn_command = command
    cli.cli.main(["server", *arguments])


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ClozeError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(error.exit_code)  # threads of MLflow and of its database may outlive the error
