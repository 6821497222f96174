"""Connection to a Prefect server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prefect import settings
from prefect.client.orchestration import SyncPrefectClient, get_client

from cloze.core.errors import ClozeError
from cloze.flows.run.server_addresses import TRUST, UNTRUSTED

# Of a call: a command that talks to a server ends within minutes.
LIMITS = {settings.PREFECT_API_REQUEST_TIMEOUT: 30.0, settings.PREFECT_CLIENT_MAX_RETRIES: 2}


@contextmanager
def connected(api: str) -> Iterator[SyncPrefectClient]:
    """Yield an authenticated client of the server at `api`.

    Raises:
        ClozeError: the server does not answer, or rejects the login or a request.
    """
    limited = settings.temporary_settings({settings.PREFECT_API_URL: api, **LIMITS})
    try:
        with limited, get_client(sync_client=True) as client:
            client.api_version()
            yield client
    except ClozeError:
        raise
    except Exception as error:
        if _requires_login(error):
            raise ClozeError(
                f"Prefect at {api} rejects the login; set PREFECT_API_AUTH_STRING to "
                f"user:password, or PREFECT_API_KEY for Prefect Cloud"
            ) from error
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        if UNTRUSTED in reason:
            reason = f"its certificate is not trusted; {TRUST}"
        raise ClozeError(f"Prefect at {api}: {reason}") from error


def _requires_login(error: BaseException | None) -> bool:
    """Return whether the error or one of its causes is an HTTP status 401 or 403."""
    while error is not None:
        if getattr(getattr(error, "response", None), "status_code", None) in (401, 403):
            return True
        error = error.__cause__ or error.__context__
    return False
