"""Model cards: the code that they show runs on the exported directory, and the Hub's tags are
right.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cloze.model import checkpoint
from cloze.model.families.hub_format import exportable
from cloze.model.hub.write import write_directory
from tests.model.use.test_embed import write_tuned
from tests.parity.pretrained import write_pretrained

transformers = pytest.importorskip("transformers", reason="the cards' code needs transformers")

ENCODERS = {"electra": "feature-extraction"}
GENERATORS = {"gpt2": "text-generation", "ltr": "text-generation"}


def front_matter(card: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in card.split("---")[1].strip().splitlines())


def run_code(card: str, directory: Path) -> dict[str, Any]:
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code.replace("path/to/this/directory", str(directory)), names)
    return names


@pytest.mark.parametrize("kind", ["wordpiece", "byte_level"])
@pytest.mark.parametrize("family", exportable())
def test_pretrained(family: str, kind: str, tmp_path: Path) -> None:
    path = write_pretrained(tmp_path / "checkpoint", family, kind, max_position_embeddings=64)
    hub = tmp_path / "hub"
    written = write_directory(checkpoint.load(path), str(hub))
    card = (hub / "README.md").read_text()
    expected = (ENCODERS | GENERATORS).get(family, "fill-mask")
    assert front_matter(card)["pipeline_tag"] == expected
    if expected == "fill-mask":  # SPLADE and the like look for this class by its name
        assert written["architectures"][0].endswith("ForMaskedLM")
    if family == "gpt2":
        return  # forty new tokens do not fit into the tiny model
    run_code(card, hub)


def test_vectors(tmp_path: Path) -> None:
    path, hub = write_tuned(tmp_path, pooling="mean", normalize=True), tmp_path / "hub"
    write_directory(checkpoint.load(path), str(hub))
    card = (hub / "README.md").read_text()
    told = front_matter(card)
    assert told["pipeline_tag"] == "sentence-similarity"
    assert told["library_name"] == "sentence-transformers"
    pytest.importorskip("sentence_transformers")
    run_code(card, hub)
