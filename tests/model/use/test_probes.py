"""Closed-book probes in LAMA's format: ranks by a plain sort, and what is no probe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from cloze.core.errors import DataError
from cloze.flows.cli import cloze
from cloze.model import checkpoint
from cloze.model.families.models import load_model
from cloze.model.use.configs import FillMaskConfig
from cloze.model.use.fill_mask import FillMask
from cloze.model.use.request import Request
from tests.tiny_models import PIECES, write_checkpoint

# As LAMA's files have them: T-REx with a template, Google-RE and ConceptNet with sentences.
PROBES: list[dict[str, Any]] = [
    {"uuid": "1", "predicate_id": "P36", "sub_label": "Paris", "obj_label": "capital",
     "template": "[X] is the [Y] ."},
    {"predicate_id": "P36", "sub_label": "a park", "obj_label": "dog", "template": "[Y] in [X]"},
    {"pred": "sat", "sub_label": "cat", "obj_label": "mat",
     "masked_sentences": ["the cat sat", "on the [MASK]."]},
    {"masked_sentences": ["the [MASK] ran."], "obj_label": "walking"},  # two tokens
    {"masked_sentences": ["the [MASK] ran."], "obj_label": "zebra"},
    {"text": "the cat sat on the [MASK]."},
]  # fmt: skip
TEXTS = ["paris is the {} .", "{} in a park", "the cat sat on the {}."]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    base = tmp_path_factory.mktemp("probes")
    return write_checkpoint(base / "checkpoint", base / "scratch")


def verb_of(directory: str) -> FillMask:
    return FillMask(directory, FillMaskConfig(requests=({},)))


def request(number: int, fields: dict[str, Any]) -> Request:
    return Request(index=number, fields=fields, where=f"probes.jsonl, line {number + 1}")


def test_ranks_are_those_of_a_plain_sort(directory: str) -> None:
    verb = verb_of(directory)
    questions = [verb.read(request(number, fields)) for number, fields in enumerate(PROBES)]
    answers = verb.answer(questions)
    loaded = checkpoint.load(directory)
    model, ranks = load_model(loaded.model, loaded.state), []
    for text, fields, answer in zip(TEXTS, PROBES, answers, strict=False):
        pieces = ["[CLS]", *text.format("[MASK]").replace(".", " .").split(), "[SEP]"]
        ids = torch.tensor([[PIECES.index(piece) for piece in pieces]])
        batch = {
            "input_ids": ids,
            "token_type_ids": 0 * ids,
            "masked_positions": torch.tensor([pieces.index("[MASK]")]),
        }
        order = model(batch)["mlm_logits"][0].argsort(descending=True).tolist()
        ranks.append(1 + order.index(PIECES.index(fields["obj_label"])))
        assert answer["rank"] == ranks[-1]
    assert [answer.get("rank", "none") for answer in answers[3:]] == [None, None, "none"]
    done = verb.finish()
    assert (done["probes"], done["dropped"]) == (3, 2)
    assert done["metrics"]["precision_at_1"] == pytest.approx(ranks.count(1) / 3)
    assert done["metrics"]["precision_at_10"] == pytest.approx(sum(r <= 10 for r in ranks) / 3)
    assert done["metrics"]["mrr"] == pytest.approx(sum(1 / rank for rank in ranks) / 3)
    assert done["by_relation"] == {
        "P36": ranks[:2].count(1) / 2, "sat": float(ranks[2] == 1)
    }  # fmt: skip
    mean = (done["by_relation"]["P36"] + done["by_relation"]["sat"]) / 2
    assert done["metrics"]["macro_precision_at_1"] == pytest.approx(mean)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"masked_sentences": "the [MASK]", "obj_label": "cat"}, "no list of texts"),
        ({"masked_sentences": ["[MASK] [MASK]"], "obj_label": "cat"}, "line 1: .*several masks"),
        ({"masked_sentences": ["the cat"], "obj_label": "cat"}, r"has no \[MASK\]"),
        ({"template": "[X] [Y]", "obj_label": "cat"}, "has no 'sub_label'"),
        ({"obj_label": "cat"}, "has no 'text'"),
    ],
)
def test_a_line_that_is_no_probe_is_refused(
    directory: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        verb_of(directory).read(request(0, fields))


@pytest.mark.usefixtures("warm")
def test_the_command_prints_the_scores(directory: str, tmp_path: Path) -> None:
    file, out = tmp_path / "P36.jsonl", tmp_path / "answers.jsonl"
    file.write_text("".join(json.dumps(fields) + "\n" for fields in PROBES))
    arguments = ["fill-mask", directory, "--file", str(file), "--out", str(out)]
    shown = CliRunner().invoke(cloze, arguments)
    assert shown.exit_code == 0, shown.output
    assert "6 answers (precision_at_1 " in shown.output
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["index"] for line in lines] == list(range(6))
    assert "rank" in lines[0]
    as_json = json.loads(CliRunner().invoke(cloze, [*arguments, "--json"]).stdout.splitlines()[-1])
    assert as_json["probes"] == 3
