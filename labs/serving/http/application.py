"""The HTTP application of `cloze serve`.

    POST /models/NAME/VERB    {"inputs": [{"text": "…"}]} -> {"model", "version", "predictions"};
                              an input with "explain": true gets its explanation, too
    GET  /models              names, verbs, versions, readiness and examples
    GET  /health, /ready      200 while the process lives; 200 while all models have a worker
    GET  /metrics             Prometheus
    GET  /openapi.json        schema with examples
    /                         a form to try the models; works without scripts

Statuses: 404 no such model or verb; 408, 413, 422 the request is too slow, too long or faulty; 429
the queue is full; 503 the model has no worker, or lost it with the request; 504 no answer in time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs

from fastapi import Body, FastAPI, HTTPException
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, create_model
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cloze.core.errors import did_you_mean
from cloze.flows.ui.loopback_guard import LoopbackOnlyMiddleware
from cloze.labs.serving.http.page import render
from cloze.labs.serving.http.served_model import (
    NotReadyError,
    QueueFullError,
    ServedModel,
    ServingMetrics,
)
from cloze.labs.serving.http.worker_process import WorkerLostError
from cloze.labs.serving.limits import Limits


class LimitsMiddleware:
    """ASGI middleware that reads bodies up to `max_body` bytes before the application runs.

    A longer body is refused with 413, one that takes longer than `seconds` with 408. A client that
    reads its answer too slowly is disconnected.
    """

    def __init__(self, app: ASGIApp, max_body: int, seconds: float) -> None:
        self.app, self._max_body, self._seconds = app, max_body, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            body = await asyncio.wait_for(self._read(receive), self._seconds)
        except TimeoutError:
            refusal = f"the request did not arrive within {self._seconds:g} seconds"
            await _refuse(408, refusal)(scope, receive, send)
            return
        if body is None:
            refusal = f"the body is longer than {self._max_body:,} bytes; send less at once"
            await _refuse(413, refusal)(scope, receive, send)
            return
        unread = [body]

        async def replay() -> Message:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            return await receive()

        async def timed_send(message: Message) -> None:
            await asyncio.wait_for(send(message), self._seconds)

        await self.app(scope, replay, timed_send)

    async def _read(self, receive: Receive) -> bytes | None:
        """Return the body; None: it is too long."""
        body = bytearray()
        while True:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > self._max_body:
                return None
            if not message.get("more_body", False):
                return bytes(body)


def _refuse(status: int, sentence: str) -> JSONResponse:
    return JSONResponse({"detail": sentence}, status, headers={"Connection": "close"})


RETRY_SECONDS = 1
EXPLAINED = ("answer", "classify", "fill-mask", "tag")  # verbs that can; no import of models here


def fields_of(examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields of a verb's inputs: texts or lists, as in its examples, and `explain`."""
    values = {name: value for example in examples for name, value in example.items()}
    texts = {name: list[str] if isinstance(own, list) else str for name, own in values.items()}
    return {**texts, "explain": bool}


def body_of(verb: str, fields: Mapping[str, Any]) -> type[BaseModel]:
    """Return the body of a verb's requests. Which fields an input needs depends on the task."""
    forbid, title = ConfigDict(extra="forbid"), verb.title().replace("-", "")
    optional: dict[str, Any] = {
        name: (kind | None, Field(default=None, strict=True)) for name, kind in fields.items()
    }
    shown = ConfigDict(**forbid, json_schema_extra=None if verb in EXPLAINED else _hide_explain)
    item = create_model(f"{title}Input", __config__=shown, **optional)
    listed: Any = list[item]  # type: ignore[valid-type]
    return create_model(f"{title}Inputs", __config__=forbid, inputs=(listed, Field(min_length=1)))


def _hide_explain(schema: dict[str, Any]) -> None:
    """Leave out of a schema what the worker refuses by a sentence, input by input."""
    schema["properties"].pop("explain", None)


class Predictions(BaseModel):
    """Answers in the order of the inputs, as `cloze VERB --json` prints them."""

    model: str
    version: str
    predictions: list[dict[str, Any]]


def application(
    models: Mapping[str, ServedModel],
    metrics: ServingMetrics,
    limits: Limits,
    examples: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    port: int,
    allowed: Collection[str] = (),
) -> ASGIApp:
    """Return the ASGI application.

    Args:
        examples: requests by verb; an input has their fields.
        port, allowed: accepted `Host` values, see `LoopbackOnlyMiddleware`.
    """
    app = FastAPI(
        title="Cloze", description="Models of `cloze serve`.", docs_url=None, redoc_url=None
    )

    def find(name: str, verb: str) -> ServedModel:
        model = models.get(name)
        if model is None:
            raise HTTPException(404, f"no model is called {name!r}; use {', '.join(models)}")
        if model.is_ready and model.info["verb"] != verb:
            raise HTTPException(404, f"model {name} answers {model.info['verb']}, not {verb}")
        return model

    async def ask(name: str, verb: str, inputs: Sequence[dict[str, Any]]) -> dict[str, Any]:
        begin, status = time.monotonic(), 200
        label = name if name in models else ""
        try:
            model = find(name, verb)
            _check(inputs, limits)
            version = model.version
            answers = await _answers(model, inputs)
            return {"model": name, "version": version, "predictions": answers}
        except HTTPException as error:
            status = error.status_code
            raise
        finally:
            metrics.requests.labels(label, str(status)).inc()
            metrics.seconds.labels(label).observe(time.monotonic() - begin)

    fields = {verb: fields_of(own) for verb, own in examples.items()}

    def add_route(verb: str, example: Mapping[str, Any]) -> None:
        # values, because FastAPI cannot evaluate an annotation that names a local variable
        shown: Any = {"summary": verb, "value": {"inputs": [example]}}
        from_body = Body(openapi_examples={verb: shown})

        async def endpoint(name: str, body: Any = from_body) -> Any:
            return await ask(name, verb, body.model_dump(exclude_none=True)["inputs"])

        endpoint.__annotations__["body"] = body_of(verb, fields[verb])
        route = app.post(
            f"/models/{{name}}/{verb}", response_model=Predictions, name=verb, tags=[verb]
        )
        route(endpoint)

    for verb, (example, *_) in examples.items():
        add_route(verb, example)

    @app.exception_handler(RequestValidationError)
    async def refuse(request: Request, error: RequestValidationError) -> Response:
        """Name the fields; FastAPI's own answer repeats the input, which may be no text."""
        metrics.requests.labels("", "422").inc()
        verb = request.url.path.rpartition("/")[2]
        detail = [
            {
                "field": ".".join(map(str, fault["loc"])),
                "error": _sentence(fault, fields.get(verb, {})),
            }
            for fault in error.errors()
        ]
        return JSONResponse({"detail": detail}, 422)

    @app.get("/models", tags=["server"])
    def list_models() -> list[dict[str, Any]]:
        return [
            {"name": name, "version": model.version, "ready": model.is_ready, **model.info}
            for name, model in models.items()
        ]

    @app.get("/health", tags=["server"], response_class=PlainTextResponse)
    def health() -> str:
        return "ok\n"

    @app.get("/ready", tags=["server"])
    def ready() -> Response:
        states = {name: model.is_ready for name, model in models.items()}
        return JSONResponse(states, 200 if all(states.values()) else 503)

    @app.get("/metrics", tags=["server"], response_class=PlainTextResponse)
    def prometheus() -> Response:
        for name, model in models.items():
            metrics.queue.labels(name).set(model.queued)
            metrics.ready.labels(name).set(model.is_ready)
        return PlainTextResponse(metrics.text())

    @app.get("/", include_in_schema=False)
    def page() -> Response:
        return render(models, {}, None, None)

    @app.post("/", include_in_schema=False)
    async def try_model(request: Request) -> Response:
        body = (await request.body()).decode(errors="replace")
        # a form has lines that end in \r\n
        form = {key: values[0].replace("\r\n", "\n") for key, values in parse_qs(body).items()}
        model = models.get(form.get("model", ""))
        if model is None or not model.is_ready:
            return render(models, form, None, "This model is not ready; try again in a moment.")
        begin = time.perf_counter()
        try:
            verb = model.info["verb"]
            answer = await ask(model.name, verb, [_filled(fields[verb], form)])
        except HTTPException as error:
            details: Any = error.detail
            sentence = details if isinstance(details, str) else details[0]["error"]
            return render(models, form, None, sentence)
        milliseconds = 1000 * (time.perf_counter() - begin)
        return render(models, form, answer["predictions"][0], None, milliseconds)

    limited = LimitsMiddleware(app, limits.max_body, limits.timeout)
    return LoopbackOnlyMiddleware(limited, port, allowed)


def _sentence(fault: Mapping[str, Any], fields: Mapping[str, Any]) -> str:
    """Return what is wrong with a field, and for an unknown one which fields there are."""
    if fault["type"] != "extra_forbidden":
        return str(fault["msg"])
    *above, name = fault["loc"]
    known = did_you_mean(str(name), fields if "inputs" in above else ("inputs",))
    return f"{fault['msg']}; {known}"


def _check(inputs: Sequence[Mapping[str, Any]], limits: Limits) -> None:
    if len(inputs) > limits.max_items:
        detail = f"{len(inputs)} inputs are more than {limits.max_items}; send fewer"
        raise HTTPException(413, detail)
    for number, fields in enumerate(inputs):
        for name, value in fields.items():
            texts = value if isinstance(value, list) else [value] if isinstance(value, str) else ()
            if (size := sum(map(len, texts))) > limits.max_characters:
                raise HTTPException(
                    413,
                    f"{name!r} of input {number} has {size:,} characters, more than"
                    f" {limits.max_characters:,}; shorten it",
                )


async def _answers(model: ServedModel, inputs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the model's answers.

    Raises:
        HTTPException: 422 an input is faulty; 429, 503, 504 as the module says.
    """
    try:
        answers = await model.answer(inputs)
    except QueueFullError as error:
        raise HTTPException(429, str(error), {"Retry-After": str(RETRY_SECONDS)}) from None
    except (NotReadyError, WorkerLostError) as error:
        raise HTTPException(503, str(error), {"Retry-After": str(RETRY_SECONDS)}) from None
    except TimeoutError:
        raise HTTPException(504, f"model {model.name} did not answer in time") from None
    errors = [
        {"input": number, "error": answer["error"]}
        for number, answer in enumerate(answers)
        if "error" in answer
    ]
    if errors:
        raise HTTPException(422, errors)
    return answers


def _filled(fields: Mapping[str, Any], form: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a submitted form without empty ones; a list has an item per line."""
    readers = {str: str, bool: bool}
    return {
        name: readers.get(kind, _lines)(form[name])
        for name, kind in fields.items()
        if form.get(name)
    }


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]
