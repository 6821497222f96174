"""`python -m flows.servers.prefect_server PORT`: Prefect's server on loopback, for requests from this machine alone.

What `prefect server start` runs, with `OnlyFromHere` before it: Prefect itself checks no `Host`, and by default lets every site's
scripts call it.
"""

from __future__ import annotations

import os
import sys

from flows.servers.hosts import OnlyFromHere, origins
from flows.servers.ports import LOOPBACK


def main(port: int) -> None:
    os.environ["PREFECT_SERVER_API_HOST"] = LOOPBACK
    os.environ["PREFECT_SERVER_API_PORT"] = str(port)
    os.environ["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"] = ",".join(origins(port))
    import uvicorn
    from prefect.server.api.server import create_app

    app = OnlyFromHere(create_app(final=True), port)
    uvicorn.run(
        app, host=LOOPBACK, port=port, timeout_keep_alive=5, timeout_graceful_shutdown=3, log_level="warning", access_log=False
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
