"""The page of `cloze serve`: a form per model, its answer as bars and JSON, and what it looked at.

It works without scripts, and its policy allows none.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from starlette.responses import HTMLResponse, Response

from cloze.core.humanize import templates_in
from cloze.labs.serving.http.served_model import ServedModel

TEMPLATES = Path(__file__).parents[1] / "templates"
SHADES, NAMED = 4, 6  # strengths of a colour; words that are named
SIDES = {"left": "left of it", "own": "its own words", "right": "right of it", "other": "elsewhere"}


def _bars(answer: Mapping[str, Any]) -> list[list[tuple[str, float]]]:
    """Return the candidates of an answer with their probabilities, a list for each mask."""
    found = answer.get("predictions") or answer.get("entities") or []
    groups = found if found and isinstance(found[0], list) else [found]
    return [
        [
            (_candidate(row), row["score"])
            for row in group
            if 0 <= row.get("score", -1) <= 1  # a score that is no probability has no bar
        ]
        for group in groups
    ]


def _candidate(row: Mapping[str, Any]) -> str:
    """Return the text of a label, token, ending, answer or entity."""
    if "type" in row:
        return f"{row['text']} ({row['type']})"
    if "answer" in row:
        return str(row["answer"]) or "(no answer)"
    return next((str(row[name]) for name in ("label", "token", "text") if name in row), "")


def _explanations(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield each explanation of an answer as shaded words, with shares of the absolute scores.

    It has `of`, what is explained; `logit`, `baseline`; `fields`, pieces of text by field: the gap
    before it, its text, its class in the style, its share; `strongest`, words with shares; `sides`.
    """
    for own in (answer, *answer.get("entities", ()), *answer.get("masks", ())):
        if "explanation" not in own:
            continue
        found = own["explanation"] or {"tokens": (), "context": {}, "logit": 0.0, "baseline": 0.0}
        tokens = found["tokens"]
        largest = max((abs(token["score"]) for token in tokens), default=0) or 1
        total = sum(abs(token["score"]) for token in tokens) or 1
        fields: dict[str, list[tuple[str, str, str, str]]] = {}
        ends: dict[str, int] = {}
        for token in tokens:
            name, strength = token["field"], round(SHADES * abs(token["score"]) / largest)
            side = "for" if token["score"] > 0 else "against"
            shade = f"{side} s{strength}" if strength else ""
            gap = " " if token["start"] > ends.get(name, token["start"]) else ""
            ends[name] = token["end"]
            piece = (gap, token["text"], shade, _percent(token["score"] / total))
            fields.setdefault(name, []).append(piece)
        strongest = sorted(tokens, key=lambda token: -abs(token["score"]))[:NAMED]
        yield {
            **found,
            "of": _candidate(own) or "a higher score",
            "fields": fields,
            "strongest": [(token["text"], _percent(token["score"] / total)) for token in strongest],
            "sides": [(SIDES.get(k, k), v) for k, v in found["context"].items() if v is not None],
        }


def _percent(share: float) -> str:
    return f"{100 * share:+.0f} %".replace("-", "−")


def render(
    models: Mapping[str, ServedModel],
    form: Mapping[str, str],
    answer: Mapping[str, Any] | None,
    error: str | None,
    milliseconds: float | None = None,
) -> Response:
    """Return the page: a form per model, filled with what was sent or with the model's example.

    Args:
        milliseconds: of the answer, its time in the queue included.
    """
    nonce = secrets.token_urlsafe(16)
    rows = []
    for name, model in models.items():
        sent = form if form.get("model") == name else {}
        example = {
            field: "\n".join(value) if isinstance(value, list) else value
            for field, value in model.info.get("example", {}).items()
        }
        fields = {field: sent.get(field, value) for field, value in example.items()}
        rows.append({"model": model, "fields": fields, "sent": sent})
    content = (
        templates_in(TEMPLATES)
        .get_template("try.html")
        .render(
            nonce=nonce,
            rows=rows,
            answer=None if answer is None else json.dumps(answer, indent=2, ensure_ascii=False),
            bars=[] if answer is None else _bars(answer),
            explanations=[] if answer is None else [*_explanations(answer)],
            explain_ms=(answer or {}).get("explain_ms"),
            milliseconds=milliseconds,
            error=error,
        )
    )
    policy = (
        f"default-src 'none'; style-src 'nonce-{nonce}'; img-src data:; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'none'"
    )
    headers = {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        # no-referrer would make a browser send `Origin: null` with the form, which is refused
        "Referrer-Policy": "same-origin",
        "Cache-Control": "no-store",
    }
    return HTMLResponse(content, headers=headers)
