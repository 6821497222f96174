"""The command `serve`."""

from __future__ import annotations

from typing import Any

import click

from cloze.flows.commands.base.field_options import field_options
from cloze.flows.commands.base.options import Placement, complete_targets, emit, json_option
from cloze.labs.serving.limits import Limits
from cloze.labs.serving.verbs import served
from cloze.labs.serving.worker import ServingConfig

_COMPUTED = {name: Placement("Computation") for name in ("device", "precision")}


@click.command()
@click.argument("models", nargs=-1, required=True, shell_complete=complete_targets)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on. It has no login."
)
@click.option(
    "--port", type=click.IntRange(1, 65535), default=8000, show_default=True, help="Port."
)
@click.option(
    "--allowed-hosts",
    metavar="NAMES",
    default="",
    help="Further Host values to accept, comma-separated, such as models:8000.",
)
@click.option(
    "--verb",
    "verbs",
    multiple=True,
    metavar="NAME=VERB",
    help=f"Verb of a model: {', '.join(served())}. Repeatable. Default: by its training.",
)
@json_option
def serve(models: tuple[str, ...], verbs: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Serve models over HTTP, with a page to try them.

    A model is [NAME=]CHECKPOINT: an artifact, RUN/NODE, or models:/NAME@ALIAS of MLflow's registry,
    whose alias is followed. POST /models/NAME/VERB answers what `cloze VERB` does; / is a page to
    try it. SIGTERM ends the server once it has answered.
    """
    from cloze.core.errors import UsageError, require_packages
    from cloze.flows.ui import services
    from cloze.flows.ui.command import runs_of_home

    require_packages("fastapi", "uvicorn", "prometheus_client")
    host, port, allowed = (options.pop(name) for name in ("host", "port", "allowed_hosts"))
    given = {name: value for name, value in options.items() if value is not None}
    if not services.is_free(port, host):
        raise UsageError(f"--port {port} of {host} cannot be listened on; name another port")
    by_name, known = dict(item.partition("=")[::2] for item in verbs), served()
    for name, verb in by_name.items():
        if verb not in known:
            raise UsageError(f"--verb {name}={verb} is no verb; use NAME= and {', '.join(known)}")
    from cloze.labs.serving.http import sources

    for model in models:  # before the server is imported
        sources.check(model)
    from cloze.labs.serving.http.server import serve as run

    address = services.address(port, host)

    def announce() -> None:
        click.echo(f"Models at {address}; Ctrl-C ends the server.", err=True)
        is_local = host in ("localhost", "::1") or host.startswith("127.")
        who = "every account of this machine" if is_local else f"whoever reaches {host}"
        click.echo(f"There is no login: {who} can ask them.", err=True)
        if as_json:
            emit({"address": address, "models": list(models)})

    run(
        models,
        runs_of_home(),
        host=host,
        port=port,
        allowed=list(filter(None, allowed.split(","))),
        examples={name: verb.examples for name, verb in known.items()},
        limits=Limits(**{name: own for name, own in given.items() if name not in _COMPUTED}),
        config={name: given[name] for name in _COMPUTED if name in given},
        verbs=by_name,
        announce=announce,
    )


_PLACED = {name: Placement("Limits") for name in Limits.model_fields}
serve.params[-1:-1] = [  # in front of --json
    *field_options(ServingConfig, "", _COMPUTED, {}, lambda name: name in _COMPUTED),
    *field_options(Limits, "", _PLACED, {}),
]
