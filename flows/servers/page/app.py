from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from flows.servers.hosts import OnlyFromHere


def application(runs, port):
    return OnlyFromHere(Starlette(routes=[Route("/health", lambda r: PlainTextResponse("ok\n"))]), port)
