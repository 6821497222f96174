"""What an input of a served verb may have: the fields of the examples in the verb's row, no others."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from typing import Any, cast

import pytest
from starlette.testclient import TestClient

from cloze.labs.serving.http.application import application
from cloze.labs.serving.http.served_model import ServingMetrics
from cloze.labs.serving.limits import Limits
from cloze.labs.serving.verbs import served

EXAMPLES: dict[str, Sequence[dict[str, Any]]] = {
    **{name: verb.examples for name, verb in served().items()},
    # of somebody else's plug-in
    "find-all": ({"query": "who?"}, {"query": "who?", "places": ["here", "there"]}),
}
ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    *((name, example) for name, examples in EXAMPLES.items() for example in examples),
    ("classify", {"text": "a", "pair": None}),
    ("find-all", {"places": ["here"]}),
]
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("tag", {"text": "a", "pair": "b"}, "body.inputs.0.pair"),
    ("embed", {"text": "a", "choices": ["b", "c"]}, "body.inputs.0.choices"),
    ("answer", {"question": "a", "passage": "b", "text": "c"}, "body.inputs.0.text"),
    ("fill-mask", {"txt": "a [MASK]"}, "body.inputs.0.txt"),
    ("classify", {"text": 7}, "body.inputs.0.text"),
    ("classify", {"text": "a", "choices": "b"}, "body.inputs.0.choices"),
    ("find-all", {"query": "a", "text": "b"}, "body.inputs.0.text"),
    ("find-all", {"places": [["a"]]}, "body.inputs.0.places.0"),
]


class Echo:
    """A model that answers with what it is asked."""

    version, queued, is_ready = "v", 0, True

    def __init__(self, name: str, example: dict[str, Any]) -> None:
        self.name, self.info = name, {"verb": name, "example": example}

    async def answer(self, requests: Sequence[Any]) -> list[dict[str, Any]]:
        return [{"asked": dict(fields)} for fields in requests]


@pytest.fixture(scope="module")
def site() -> TestClient:
    models: Any = {name: Echo(name, examples[-1]) for name, examples in EXAMPLES.items()}
    app = application(models, ServingMetrics(), Limits(max_characters=20_000), EXAMPLES, port=8123)
    return TestClient(cast(Any, app), base_url="http://127.0.0.1:8123")


@pytest.mark.parametrize(("verb", "fields"), ACCEPTED)
def test_the_fields_of_its_examples_arrive(
    site: TestClient, verb: str, fields: dict[str, Any]
) -> None:
    answer = site.post(f"/models/{verb}/{verb}", json={"inputs": [fields, fields]})
    given = {name: value for name, value in fields.items() if value is not None}
    assert answer.json()["predictions"] == 2 * [{"asked": given}]


@pytest.mark.parametrize(("verb", "fields", "place"), REFUSED)
def test_other_fields_are_refused_by_name(
    site: TestClient, verb: str, fields: dict[str, Any], place: str
) -> None:
    answer = site.post(f"/models/{verb}/{verb}", json={"inputs": [fields]})
    assert answer.status_code == 422
    (fault,) = answer.json()["detail"]
    assert fault["field"] == place
    name, known = place.rpartition(".")[2], {name for own in EXAMPLES[verb] for name in own}
    if name.isalpha() and name not in known:
        assert any(own in fault["error"] for own in known)


def test_a_mistyped_field_is_told_the_right_one(site: TestClient) -> None:
    for body, wanted in (
        ({"inputs": [{"questoin": "a"}]}, "did you mean 'question'?"),
        ({"input": []}, "did you mean 'inputs'?"),
    ):
        faults = site.post("/models/answer/answer", json=body).json()["detail"]
        assert wanted in " ".join(fault["error"] for fault in faults)


def test_a_form_has_a_line_for_each_item_of_a_list(site: TestClient) -> None:
    form = {"model": "find-all", "query": " who? ", "places": "here\r\n\n  \nthere", "text": "lost"}
    shown = site.post("/", data=form).text
    asked = shown.partition('<pre aria-label="answer">')[2].partition("</pre>")[0]
    assert json.loads(html.unescape(asked)) == {
        "asked": {"query": " who? ", "places": ["here", "there"]}
    }


def test_the_schema_has_the_fields_of_each_verb(site: TestClient) -> None:
    schema = site.get("/openapi.json").json()
    for verb, examples in EXAMPLES.items():
        body = schema["paths"][f"/models/{{name}}/{verb}"]["post"]["requestBody"]["content"]
        content = body["application/json"]
        assert content["examples"][verb]["value"] == {"inputs": [examples[0]]}
        inputs = schema["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
        item = inputs["properties"]["inputs"]["items"]["$ref"].rpartition("/")[2]
        fields = schema["components"]["schemas"][item]["properties"]
        named = {name for example in examples for name in example}
        row = served().get(verb)  # embed, score and the like refuse it
        explains = row and (verb == "fill-mask" or "explain" in row.config.model_fields)
        assert fields.keys() == named | ({"explain"} if explains else set())
