"""Worker of `cloze serve`: batches of requests come in, answers go out.

A worker holds one checkpoint for one verb. It reads a JSON object per line:

    {"batch": 7, "requests": [{"text": "…"}, …]}

and sends records: first `{"ready": {…}}`, then one per batch, in order:

    {"batch": 7, "answers": [{…}, {"error": "…"}, …]}

The answer to a request with `"explain": true` has its explanation, and `explain_ms`, its time. A
thread reads and tokenizes the next batch while the model computes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from cloze.core.config import StageConfig
from cloze.core.errors import ClozeError, UsageError
from cloze.core.stages.stage import BuildContext, InputSpec, Stage, StageResult
from cloze.model.use.request import request_of
from cloze.model.use.verb import PREDICTORS, Verb, open_verb, verb_of

MOST_EXPLAINED = 16  # masks or entities of an input; the model does nothing else meanwhile


class ServingConfig(StageConfig):
    """Config of a serving worker."""

    verb: str | None = None
    """Verb that answers. Default: by the checkpoint's heads."""

    source: str = "/dev/stdin"
    """File or pipe with a batch per line."""

    device: Literal["auto", "cpu", "cuda"] = "cpu"
    """Device to compute on. auto: a GPU if there is one."""

    precision: Literal["auto", "fp32", "bf16", "int8"] = "fp32"
    """Precision of matrix products, over fp32 weights. auto: bf16 if native. int8: for CPUs."""


def run(config: ServingConfig, build: BuildContext) -> StageResult:
    """Load the checkpoint, answer an example, report `ready`, and answer batches until the end.

    Raises:
        UsageError: the checkpoint does not support the verb, or no verb supports its heads.
        DataError: the checkpoint is missing or damaged.
    """
    from cloze.labs.serving.explain_mask import explainer_of  # torch
    from cloze.model.data.batch import Prefetch

    checkpoint = build.inputs["checkpoint"]
    name = config.verb or verb_of(checkpoint)
    verb_config = PREDICTORS[name].config(
        file=config.source, device=config.device, precision=config.precision
    )
    if not (examples := PREDICTORS[name].examples):
        raise UsageError(
            f"verb {name} of {checkpoint} is not served: its row has no examples; name another one "
            f"with --verb"
        )
    verb = open_verb(name, checkpoint, verb_config)
    explainer, obstacle = None, ""
    try:
        explainer = explainer_of(name, checkpoint, verb, verb_config)
    except UsageError as error:
        obstacle = str(error)
    ready = {"verb": name, "example": _warm_up(verb, examples), "explains": not obstacle}
    build.report.predictions([{"ready": ready}])
    batches = Prefetch(_encoded_batches(verb, config.source, obstacle), depth=1)
    for number, items, errors, encoded, explained in batches:
        answers = {**errors, **dict(zip(items, _answers(verb, items, encoded), strict=True))}
        for index in explained:
            begin, answer = time.perf_counter(), answers[index]
            if explainer is not None and "error" not in answer:
                own = verb.encode([items[index]])
                masks = getattr(own[0], "masks", ()) if isinstance(own, Sequence) else ()
                if (count := len(answer.get("entities") or masks)) > MOST_EXPLAINED:
                    answers[index] = {"error": _too_many(count)}
                    continue
                explainer.explain(own, [answer])
                answer["explain_ms"] = round(1000 * (time.perf_counter() - begin), 1)
        ordered = [answers[index] for index in sorted(answers)]
        build.report.predictions([{"batch": number, "answers": ordered}])
    return StageResult()


Items = Mapping[int, Any]  # what `Verb.read` returned, by number of the request in its batch
Errors = Mapping[int, dict[str, Any]]


def _encoded_batches(
    verb: Verb[Any], source: str, obstacle: str
) -> Iterator[tuple[int, Items, Errors, Any, list[int]]]:
    """Iterate over batches: number, requests, errors, encoded requests, and those to explain.

    Args:
        obstacle: why the checkpoint explains nothing; empty: it does.
    """
    with open(source, "rb") as lines:
        for line in lines:
            batch = json.loads(line)
            items, errors = dict[int, Any](), dict[int, dict[str, Any]]()
            for index, fields in enumerate(batch["requests"]):
                try:
                    if obstacle and fields.get("explain"):
                        raise UsageError(obstacle)
                    items[index] = verb.read(request_of(fields, index))
                except ClozeError as error:
                    errors[index] = {"error": str(error)}
            explained = [index for index in items if batch["requests"][index].get("explain")]
            yield batch["batch"], items, errors, _encoded(verb, list(items.values())), explained


def _too_many(count: int) -> str:
    return (
        f"explain (true) would explain {count} words of one input, and this server explains at "
        f"most {MOST_EXPLAINED}; send shorter texts, or leave explain out"
    )


def _encoded(verb: Verb[Any], items: Sequence[Any]) -> Any:
    """Return the encoded requests; None: one of them has an error, or there are none."""
    try:
        return verb.encode(items) if items else None
    except ClozeError:
        return None


def _answers(verb: Verb[Any], items: Items, encoded: Any) -> list[dict[str, Any]]:
    """Answer the requests of a batch, one by one if a request in it has an error."""
    if not items:
        return []
    try:
        return list(verb.answer(verb.encode(list(items.values())) if encoded is None else encoded))
    except ClozeError as error:
        if len(items) == 1:
            return [{"error": str(error)}]
        return [answer for i, item in items.items() for answer in _answers(verb, {i: item}, None)]


def _warm_up(verb: Verb[Any], examples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Answer the first example that the checkpoint accepts, and return its fields."""
    for fields in examples:
        try:
            verb.answer(verb.encode([verb.read(request_of(fields, 0))]))
        except ClozeError:
            continue
        return fields
    return examples[0]


SERVE = Stage(
    name="serve",
    version=1,
    config=ServingConfig,
    run=run,
    inputs={"checkpoint": InputSpec(required=True)},
    worker="cloze.model",
)
