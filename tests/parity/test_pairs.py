"""Pairs of texts: the ids, types and logits of fine-tuned models are those of `AutoTokenizer(a,
b)`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from cloze.core.stages.execute import execute
from cloze.model import checkpoint
from cloze.model.families.hub_formats import exportable
from cloze.model.families.models import new_backbone
from cloze.model.hub.stages import EXPORT, ExportConfig
from cloze.model.tasks.encode import encode
from cloze.model.tasks.formats.choices import Choices
from cloze.model.tasks.formats.squad import SquadExamples
from cloze.model.tasks.heads import SequenceClassifier
from cloze.model.tasks.options import SpanOptions
from cloze.model.tasks.span_windows import encode_questions
from cloze.model.tasks.table import load_task
from cloze.pipeline.tokenizer.tokenizer import Tokenizer
from tests.parity.pretrained import KINDS, new_tokenizer
from tests.slices import few
from tests.tiny_models import tiny_config

transformers = pytest.importorskip("transformers", reason="parity is measured against it")

FIRST = ["a cat", "the dog sat", "x"]
SECOND = ["no", "a cat ran", "[SEP] </s> y"]
# families whose classes at Hugging Face have no head on a pair, with what our export says
NO_CLASS = {"ltr", "t5", "transformer"}


each_kind = pytest.mark.parametrize("kind", KINDS)


def saved(kind: str, directory: Path) -> Tokenizer:
    pieces = new_tokenizer(kind)
    pieces.save(str(directory))
    return pieces


@each_kind
@pytest.mark.parametrize("pairs", [False, True])
def test_ids_and_types_of_texts(kind: str, pairs: bool, tmp_path: Path) -> None:
    pieces = saved(kind, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    first, second = FIRST[:2], SECOND[:2] if pairs else None
    batch = encode(first, second, pieces, 32).batch([0, 1])
    found = theirs(first, second, padding=True, return_tensors="pt", return_token_type_ids=True)
    assert batch["input_ids"].tolist() == found["input_ids"].tolist()
    assert batch["token_type_ids"].tolist() == found["token_type_ids"].tolist()
    assert batch["attention_mask"].long().tolist() == found["attention_mask"].tolist()
    count = found["input_ids"].eq(pieces.special.sep).sum(1).tolist()
    assert count == [(3 if kind in ("byte_level", "xlm_roberta") else 2) if pairs else 1] * 2


@each_kind
def test_windows_of_questions(kind: str, tmp_path: Path) -> None:
    pieces = saved(kind, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    questions = SquadExamples(
        ids=["q"], questions=["a dog"], passages=["the cat sat"], passage_of=[0], answers=None
    )
    windows = encode_questions(questions, pieces, 32, SpanOptions())
    assert [sequence.tolist() for sequence in windows.sequences] == [
        theirs("a dog", "the cat sat")["input_ids"]
    ]
    begin, end = windows.targets["bounds"][0][:2]
    inner = [int(token) for token in windows.sequences[0][begin:end]]
    assert inner == theirs("the cat sat", add_special_tokens=False)["input_ids"]


@each_kind
@pytest.mark.parametrize("truncate", ["longest", "context"])
def test_choices(kind: str, truncate: str, tmp_path: Path) -> None:
    pieces = saved(kind, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    given = Choices(
        contexts=["a cat"], endings=[["sat", "ran on"]], labels=None, label_names=("0", "1")
    )
    task = load_task("choice", {"truncate": truncate})
    found = task.encode(given, pieces, 32).sequences.sequences
    assert [row.tolist() for row in found] == [
        theirs("a cat", ending)["input_ids"] for ending in ("sat", "ran on")
    ]
    cut = task.encode(given, pieces, 6).sequences.sequences
    assert all(len(row) <= 6 for row in cut)
    assert max(map(len, cut)) == 6


@pytest.mark.parametrize(
    ("family", "kind"),
    few(
        [
            pytest.param(family, kind, id=f"{family}-{kind}")
            for family in sorted(set(exportable()) - NO_CLASS)
            for kind in ("wordpiece", "byte_level")
        ],
        "roberta-byte_level",
        *(f"{family}-wordpiece" for family in set(exportable()) - NO_CLASS),
    ),
)
def test_an_exported_model_is_used_as_it_was_tuned(family: str, kind: str, tmp_path: Path) -> None:
    """Their tokenizer feeds their model, with nothing in between, and both say what ours say."""
    pieces = saved(kind, tmp_path / "tokenizer")
    config = tiny_config(family=family)
    config = config.model_copy(update=config.vocabulary_values(pieces.vocab_size, pieces.special))
    torch.manual_seed(3)
    network = SequenceClassifier(*new_backbone(config), config.hidden_size, 3, 0.0).eval()
    checkpoint.save_weights(
        str(tmp_path / "checkpoint"),
        model=config,
        state=network.state_dict(),
        tokenizer=str(tmp_path / "tokenizer"),
        heads={"classifier": {"num_labels": 3}},
        task={"name": "any", "labels": ["a", "b", "c"]},
    )
    checkpoint.finalize(str(tmp_path / "checkpoint"))
    hub = str(tmp_path / "hub")
    execute(EXPORT, ExportConfig(), {"checkpoint": str(tmp_path / "checkpoint")}, hub)
    tokenizer = transformers.AutoTokenizer.from_pretrained(hub, local_files_only=True)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        hub, local_files_only=True
    ).eval()
    samples = encode(FIRST, SECOND[:2] + ["y"], pieces, 32)
    with torch.inference_mode():
        theirs = model(
            **tokenizer(FIRST, SECOND[:2] + ["y"], padding=True, return_tensors="pt")
        ).logits
        ours = network(samples.batch(np.arange(3)))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0.0)
