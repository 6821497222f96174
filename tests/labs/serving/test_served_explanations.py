"""`cloze serve` explains an answer where a request asks for it, and its page shows how."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.labs.serving.test_classify import tuned
from tests.labs.serving.test_serve import CHROMIUM, QUIET, SECONDS, Site, running
from tests.tiny_models import write_checkpoint

pytestmark = pytest.mark.usefixtures("warm")


@pytest.fixture(scope="module")
def explaining(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server with a model of each kind that is explained."""
    base = tmp_path_factory.mktemp("explaining")
    pair = {"name": "mnli", "labels": ["a", "b", "c"], "pairs": True}
    kinds: dict[str, tuple[str, int, dict[str, Any]]] = {
        "pairs": ("classifier", 3, pair),
        "numbers": ("classifier", 1, {"name": "stsb", "pairs": False}),
        "endings": ("choice", 1, {"name": "swag"}),
        "ner": ("token_classifier", 3, {"name": "tagging", "labels": ["B-A", "B-B", "B-C"]}),
        "squad": ("span", 2, {"name": "squad"}),
    }
    for name, (head, size, task) in kinds.items():
        path = tuned(base, head, size, {"max_length": 24, **task})
        Path(path).rename(base / name)
    write_checkpoint(base / "mlm", base / "b")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.executable", warm.python())
        with running(base, *kinds, "mlm", "vectors=mlm", "--verb", "vectors=embed") as site:
            site.wait()
            yield site


def test_an_answer_is_explained_where_it_is_asked_for(explaining: Site) -> None:
    models = {row["name"]: row for row in explaining.ask("/models")[1]}
    assert [name for name, row in models.items() if not row["explains"]] == ["vectors"]
    for name in ("pairs", "numbers", "endings", "ner", "squad", "mlm"):
        verb, example = models[name]["verb"], models[name]["example"]
        inputs = [example, {**example, "explain": True}, {**example, "explain": False}]
        status, answer = explaining.ask(f"/models/{name}/{verb}", {"inputs": inputs})
        assert status == 200, answer
        plain, explained, declined = answer["predictions"]
        assert plain.keys() == declined.keys() == explained.keys() - {
            "explanation", "masks", "explain_ms"
        }  # fmt: skip
        assert explained["explain_ms"] > 0
        owners = explained.get("entities") or explained.get("masks") or [explained]
        assert owners
        for own in owners:
            found = own["explanation"]
            total = sum(token["score"] for token in found["tokens"])
            assert total == pytest.approx(found["logit"] - found["baseline"], abs=2e-3)
    status, answer = explaining.ask(
        "/models/vectors/embed", {"inputs": [{"text": "a cat", "explain": True}, {"text": "a"}]}
    )
    assert status == 422
    assert [error["error"] for error in answer["detail"]] == [
        "embed has no explanations; leave explain out"
    ]
    status, answer = explaining.ask(
        "/models/mlm/fill-mask", {"inputs": [{"text": "a [MASK]", "explain": "yes"}]}
    )
    assert status == 422
    assert "valid boolean" in json.dumps(answer)


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_shows_what_a_model_looked_at(explaining: Site, width: int) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        page = chromium.new_page(viewport={"width": width, "height": 900})
        page.set_default_timeout(1000 * SECONDS)
        faults: list[str] = []
        page.on("console", lambda message: faults.append(message.text))
        for name in ("pairs", "numbers", "endings", "ner", "squad", "mlm"):
            page.goto(f"http://127.0.0.1:{explaining.port}/")
            section = page.locator("section.panel").filter(has=page.get_by_text(name, exact=False))
            asked = {
                str(area.get_attribute("name")): area.input_value()
                for area in section.first.locator("textarea").all()
            }
            section.first.get_by_label("Show what it looked at").check()
            section.first.get_by_role("button").click()
            shown = section.first.get_by_role("region", name="what it looked at").first
            words = " ".join(shown.locator(".words").all_inner_texts())
            answer = json.loads(section.first.get_by_label("answer").inner_text())
            texts = [*asked.values(), answer.get("text", "")]
            assert any(words.split()[0] in text for text in texts), (name, words)
            assert shown.locator("mark").count()
            assert re.search(r"Strongest: .* [+−]\d+ %", shown.inner_text())
            assert re.search(r"\d+ of them for the explanation", section.first.inner_text())
            sides = shown.get_by_role("group", name="shares of the sides").locator("meter")
            total = sum(float(str(bar.get_attribute("value"))) for bar in sides.all())
            assert total == pytest.approx(0.0 if name == "numbers" else 1.0)
            assert section.first.get_by_label("Show what it looked at").is_checked()
            kept = {
                str(area.get_attribute("name")): area.input_value()
                for area in section.first.locator("textarea").all()
            }
            assert kept == asked  # lines, too
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        vectors = page.locator("section.panel").last
        assert not vectors.get_by_label("Show what it looked at").count()
        assert not [fault for fault in faults if "favicon" not in fault]
        chromium.close()
