"""The command `serve`."""

from __future__ import annotations

from typing import Any

import click

from cloze.flows.commands.base.field_options import FiniteRange
from cloze.flows.commands.base.options import Command, complete_targets, emit, json_option
from cloze.labs.serving.limits import Limits
from cloze.labs.serving.verbs import served

# Types and help of the options of `Limits`.
LIMITS: dict[str, tuple[Any, str]] = {
    "max_batch": (click.IntRange(1, 4096), "Maximum inputs per batch."),
    "max_wait_ms": (
        FiniteRange(0, 10_000),
        "Time that an input waits for others of its batch, in milliseconds.",
    ),
    "max_queue": (
        click.IntRange(1),
        "Inputs that may wait per model; further requests get 429.",
    ),
    "max_items": (click.IntRange(1), "Maximum inputs per request."),
    "max_characters": (click.IntRange(1), "Maximum characters per text."),
    "max_body": (click.IntRange(1), "Maximum bytes per request."),
    "max_connections": (click.IntRange(1), "Maximum connections; further ones get 503."),
    "timeout": (FiniteRange(0.1, 3600), "Maximum time of a request, in seconds."),
    "poll": (
        FiniteRange(0.1, 3600),
        "Time between looks at the alias of a registered model, in seconds.",
    ),
}


def _limit_options(command: Command) -> Command:
    for name, (kind, text) in reversed(LIMITS.items()):
        command = click.option(
            f"--{name.replace('_', '-')}",
            type=kind,
            default=getattr(Limits(), name),
            show_default=True,
            help=text,
        )(command)
    return command


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
@click.option(
    "--device",
    type=click.Choice(("auto", "cpu", "cuda")),
    default="cpu",
    show_default=True,
    help="Device to compute on.",
)
@click.option(
    "--precision",
    type=click.Choice(("auto", "fp32", "bf16")),
    default="fp32",
    show_default=True,
    help="Precision of matrix products.",
)
@_limit_options
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
    host, port = options["host"], options["port"]
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
        if as_json:
            emit({"address": address, "models": list(models)})

    run(
        models,
        runs_of_home(),
        host=host,
        port=port,
        allowed=[name for name in options["allowed_hosts"].split(",") if name],
        examples={name: verb.examples for name, verb in known.items()},
        limits=Limits(**{name: options[name] for name in LIMITS}),
        config={"device": options["device"], "precision": options["precision"]},
        verbs=by_name,
        announce=announce,
    )
