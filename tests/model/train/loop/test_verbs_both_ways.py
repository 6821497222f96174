"""Encoders that were read from left to right, too: what the verbs do with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cloze.core.errors import DataError, UsageError
from cloze.labs.seq2seq.generate import TextGenerationPipeline
from cloze.model import checkpoint
from cloze.model.data.layouts import Sequences, make_layout
from cloze.model.families.models import encoder as build_encoder
from cloze.model.families.models import load_model
from cloze.model.use.fill_mask import FillMaskPipeline
from cloze.model.use.scorer import SentenceScorer
from tests.tiny_models import PIECES, tiny_config, write_checkpoint


def written(base: Path, *objectives: str, **changes: Any) -> str:
    """A checkpoint of random weights that says it was trained on these."""
    path = Path(write_checkpoint(base / "-".join(objectives), base / "scratch", **changes))
    loaded = checkpoint.load(str(path))
    checkpoint.save_weights(
        str(base / f"{path.name}-said"),
        model=loaded.model,
        state=loaded.state,
        tokenizer=loaded.tokenizer,
        heads={**loaded.heads, "masked_lm": {"objectives": list(objectives)}},
    )
    checkpoint.finalize(str(base / f"{path.name}-said"))
    return str(base / f"{path.name}-said")


def causal_logits(path: str, ids: list[int]) -> Tensor:
    """Of every position, by an encoder in which no token sees what comes later: that of `ltr`, with
    the same weights.
    """
    loaded = checkpoint.load(path)
    model = load_model(loaded.model, loaded.state)
    encoder = build_encoder(loaded.model, causal=True).eval()
    encoder.load_state_dict(model.encoder.state_dict())
    rows = torch.tensor([ids])
    with torch.no_grad():
        found: Tensor = model.masked_lm(
            encoder(rows, None, 0 * rows), model.encoder.embeddings.word.weight
        )[0]
    return found


def test_fill_mask_reads_where_the_token_was_named(tmp_path: Path) -> None:
    path = written(tmp_path, "clm", "mntp")
    ids = [PIECES.index(piece) for piece in ["[CLS]", "the", "[MASK]", "sat", "[SEP]"]]
    loaded, rows = checkpoint.load(path), torch.tensor([ids])
    batch = {
        "input_ids": rows,
        "token_type_ids": 0 * rows,
        "masked_positions": torch.tensor([1, 2]),
    }
    with torch.no_grad():
        before, at = load_model(loaded.model, loaded.state)(batch)["mlm_logits"].softmax(-1)
    ((best, *_),) = FillMaskPipeline(path).fill("the [MASK] sat", 3)
    assert best["score"] == pytest.approx(float(before.max()), abs=1e-6)
    assert abs(float(best["score"]) - float(at.max())) > 1e-4
    ((best, *_),) = FillMaskPipeline(written(tmp_path / "two", "clm", "mlm")).fill(
        "the [MASK] sat", 3
    )
    assert best["score"] == pytest.approx(float(at.max()), abs=1e-6)


def test_scores_are_of_the_way_that_was_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path, "clm", "mntp")
    text = "the cat sat on the mat"
    ids = [PIECES.index(piece) for piece in ["[CLS]", *text.split(), "[SEP]"]]
    logs = causal_logits(path, ids).log_softmax(-1)
    (found,) = SentenceScorer(path, mask="causal").scored([text])
    expected = [float(logs[place - 1, ids[place]]) for place in range(1, len(ids) - 1)]
    assert found.log_probabilities == pytest.approx(expected, abs=1e-5)
    (alone,) = SentenceScorer(written(tmp_path / "alone", "clm")).scored(
        [text]
    )  # which has no other way
    assert alone.log_probabilities == pytest.approx(expected, abs=1e-5)
    loaded = checkpoint.load(path)
    model = load_model(loaded.model, loaded.state)
    (masked,) = SentenceScorer(path).scored([text])
    for place, said in enumerate(masked.log_probabilities, start=1):
        rows = torch.tensor([ids])
        rows[0, place] = PIECES.index("[MASK]")
        batch = {
            "input_ids": rows,
            "token_type_ids": 0 * rows,
            "masked_positions": torch.tensor([place - 1]),
        }
        with torch.no_grad():
            logits = model(batch)["mlm_logits"][0]
        assert said == pytest.approx(float(logits.log_softmax(-1)[ids[place]]), abs=1e-5)
    with pytest.raises(UsageError, match=r"mask \(causal\): .* was not trained from left to right"):
        SentenceScorer(
            write_checkpoint(tmp_path / "plain", tmp_path / "plain-scratch"), mask="causal"
        )


@pytest.mark.parametrize("changes", [{}, {"family": "modern", "local_attention": 4}])
def test_an_encoder_that_was_read_from_left_to_right_writes(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    path = written(tmp_path, "clm", **changes)
    loaded, generator = checkpoint.load(path), TextGenerationPipeline(path)
    model = load_model(loaded.model, loaded.state)
    ids = generator.question("the cat sat")
    ((one,),) = generator.generate(["the cat sat"], tokens=6)
    for number, token in enumerate(
        [*one.ids, PIECES.index("[SEP]")][: 6 if one.stopped == "tokens" else None]
    ):
        rows = torch.tensor([[*ids, *one.ids[:number]]])
        layout = make_layout(
            "rows", Sequences.alone(np.array([rows.shape[1]]), rows.shape[1], np.ones(1, np.bool_))
        )
        with torch.no_grad():
            states = model.encoder(rows, None, 0 * rows, layout)
            assert (
                int(model.masked_lm(states, model.encoder.embeddings.word.weight)[0, -1].argmax())
                == token
            )


def test_no_hugging_face_class_names_tokens_at_the_position_before(tmp_path: Path) -> None:
    from cloze.model.families.hub_formats import hub_of

    for objectives, refused in (
        (("clm", "mntp"), True),
        (("clm",), True),
        (("clm", "mlm"), False),
        (("mlm",), False),
    ):
        heads = {"masked_lm": {"objectives": list(objectives)}}
        if refused:
            with pytest.raises(DataError, match="predicts each token at the position before it"):
                hub_of("bert").to_config(tiny_config(), heads, None)
        else:
            assert hub_of("bert").to_config(tiny_config(), heads, None)["architectures"] == [
                "BertForMaskedLM"
            ]
