"""fill-mask: the model's own probabilities, put into the text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cloze.core.config import parse_config
from cloze.core.errors import DataError, UsageError
from cloze.model import checkpoint
from cloze.model.families.models import load_model
from cloze.model.use.configs import FillMaskConfig
from cloze.model.use.fill_mask import BATCH, FillMaskPipeline, fill_in
from tests.tiny_models import PIECES, write_checkpoint, write_classifier


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    base = tmp_path_factory.mktemp("fill-mask")
    return write_checkpoint(base / "checkpoint", base / "scratch")


def predictions(directory: str, *texts: str, top_k: int = 5) -> Any:
    filler = FillMaskPipeline(directory)
    return [mask for text in texts for mask in filler.fill(text, top_k)]


def test_scores_are_the_probabilities_of_the_model(directory: str) -> None:
    (found,) = predictions(directory, "The cat sat on the [MASK].", top_k=len(PIECES))
    loaded = checkpoint.load(directory)
    ids = torch.tensor(
        [
            [
                PIECES.index(piece)
                for piece in ["[CLS]", "the", "cat", "sat", "on", "the", "[MASK]", ".", "[SEP]"]
            ]
        ]
    )
    batch = {"input_ids": ids, "token_type_ids": 0 * ids, "masked_positions": torch.tensor([6])}
    expected = load_model(loaded.model, loaded.state)(batch)["mlm_logits"][0].detach().softmax(-1)
    assert len(found) == len(PIECES)
    assert sum(candidate["score"] for candidate in found) == pytest.approx(1.0, abs=1e-5)
    assert [candidate["score"] for candidate in found] == sorted(
        (c["score"] for c in found), reverse=True
    )
    for candidate in found:
        assert candidate["score"] == pytest.approx(
            float(expected[PIECES.index(candidate["token"])]), abs=1e-6
        )


def test_one_list_a_mask_in_order(directory: str) -> None:
    found = predictions(
        directory, "the [MASK] sat on the [MASK]", "paris is the capital of [MASK]", top_k=2
    )
    assert [len(candidates) for candidates in found] == [2, 2, 2]
    assert found[0] != found[1]
    assert found[0][0]["sequence"].endswith("sat on the [MASK]")
    assert found[1][0]["sequence"].startswith("the [MASK] sat on the")
    assert found[2] == predictions(directory, "paris is the capital of [MASK]", top_k=2)[0]


def test_texts_that_are_asked_together_arefill_in_as_alone(directory: str) -> None:
    filler = FillMaskPipeline(directory)
    texts = [
        "the [MASK]",
        "the [MASK] sat on the [MASK]",
        "a dog ran in the [MASK] of paris .",
        "[MASK]",
    ] * 20
    together = filler.answer([filler.question(text) for text in texts], 3)
    assert len(together) == len(texts) > BATCH
    for text, found in [*zip(texts[:4], together[:4], strict=True), (texts[-2], together[-2])]:
        alone = filler.fill(text, 3)
        assert [[c["sequence"] for c in mask] for mask in found] == [
            [c["sequence"] for c in mask] for mask in alone
        ]
        for mine, its in zip(found, alone, strict=True):
            assert [c["score"] for c in mine] == pytest.approx([c["score"] for c in its], abs=1e-6)


def test_the_text_is_kept_and_pieces_that_go_on_are_joined() -> None:
    assert fill_in("The Cat [MASK].", "[MASK]", 0, "ran") == "The Cat ran."
    assert fill_in("They walk [MASK] and [MASK]", "[MASK]", 0, "##ed") == "They walked and [MASK]"
    assert fill_in("a [MASK] b [MASK]", "[MASK]", 1, "x") == "a [MASK] b x"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("no mask here", r"has no \[MASK\]"),
        ("cat " * 40 + "[MASK]", "43 pieces, the model reads 32"),
    ],
)
def test_texts_that_cannot_befill_in(directory: str, text: str, fault: str) -> None:
    with pytest.raises(UsageError, match=fault):
        FillMaskPipeline(directory).fill(text, 3)


def test_bad_configs_and_checkpoints(directory: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="top_k"):
        parse_config(FillMaskConfig, {"texts": ("a",), "top_k": 0}, "fill-mask")
    with pytest.raises(UsageError, match="requests"):
        parse_config(FillMaskConfig, {"top_k": 3}, "fill-mask")
    with pytest.raises(DataError, match="does not exist"):
        FillMaskPipeline(str(tmp_path / "none")).fill("[MASK]", 1)
    with pytest.raises(UsageError, match="no masked_lm head"):
        FillMaskPipeline(write_classifier(tmp_path / "classifier", tmp_path / "scratch")).fill(
            "[MASK]", 1
        )
