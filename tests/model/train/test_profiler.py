"""`--profile`: a page, a trace and figures, and a training that is none the wiser."""

from __future__ import annotations

import gzip
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.model.datasets import write_dataset
from tests.model.train.ranks import config, digests, here


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_dataset(tmp_path_factory.mktemp("data") / "dataset")


def test_a_profile_tells_of_its_steps_and_changes_none(dataset: str, tmp_path: Path) -> None:
    settings = config(steps=10, heldout_rows=0)
    run = here(settings, dataset, tmp_path / "run", profile=3)
    assert "profiled 3 steps from step 6 on" in run.said("note")
    directory = tmp_path / "run" / "_logs" / "profile"
    found = json.loads((directory / "profile.json").read_text())
    assert (found["first"], found["steps"]) == (6, 3)
    assert len(found["operations"]) == 10
    shares = [operation["share"] for operation in found["operations"]]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) + found["others"][1] == pytest.approx(1.0)
    assert sum(found["parts"].values()) == pytest.approx(1.0)
    assert min(found["parts"][name] for name in ("forward", "backward", "optimizer")) > 0
    assert not any(operation["name"].startswith("Optimizer.step") for operation in found["operations"]), "that is no operation"
    assert any("×" in shape for operation in found["operations"] for shape in operation["shapes"])
    trace = json.loads(gzip.decompress((directory / "trace.json.gz").read_bytes()))
    assert any(event.get("name") == "aten::addmm" for event in trace["traceEvents"])
    page = (directory / "profile.html").read_text()
    assert _balanced(page)
    assert all(operation["name"] in page for operation in found["operations"])
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    plain = here(settings, dataset, tmp_path / "plain")
    assert digests(plain.checkpoint) == digests(run.checkpoint)
    assert not (tmp_path / "plain" / "_logs").exists()


@pytest.mark.parametrize(
    ("steps", "told"), [(7, "profiled 2 steps from step 6 on"), (5, "nothing was profiled"), (3, "nothing was profiled")]
)
def test_a_training_that_ends_first_says_so(dataset: str, tmp_path: Path, steps: int, told: str) -> None:
    run = here(config(steps=steps, heldout_rows=0), dataset, tmp_path / "run", profile=50)
    assert told in run.said("note")


def _balanced(page: str) -> bool:
    """Whether every element is closed by its own tag."""
    open_ones: list[str] = []

    class Parser(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag not in ("meta", "br"):
                open_ones.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert open_ones.pop() == tag

    Parser().feed(page)
    return not open_ones
