"""`python -m cloze.flows.ui.prefect_server PORT`: Prefect's server behind `LoopbackOnlyMiddleware`.

Prefect itself checks no `Host`, and by default scripts of every site may call it.
"""

from __future__ import annotations

import os
import sys

from cloze.flows.ui.login import LoginMiddleware
from cloze.flows.ui.loopback_guard import LOOPBACK, LoopbackOnlyMiddleware, origins
from cloze.flows.ui.timed_protocol import TimedProtocol


def main(port: int) -> None:
    os.environ["PREFECT_SERVER_API_HOST"] = LOOPBACK
    os.environ["PREFECT_SERVER_API_PORT"] = str(port)
    os.environ["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"] = ",".join(origins(port))
    import uvicorn
    from prefect.server.api.server import create_app

    # Prefect asks for the login itself, for websockets in their first message
    login = os.environ["PREFECT_SERVER_API_AUTH_STRING"]
    app = LoginMiddleware(create_app(final=True), login, checks=False)
    uvicorn.run(
        LoopbackOnlyMiddleware(app, port),
        host=LOOPBACK,
        port=port,
        http=TimedProtocol,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=3,
        log_level="warning",
        access_log=False,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
