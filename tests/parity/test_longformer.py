"""Longformer against transformers, beside what holds of every family: windows, global tokens, and
what becomes of a RoBERTa.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from torch import Tensor, nn

from cloze.core.errors import UsageError
from cloze.core.stages.execute import execute
from cloze.labs.longformer.longformer import convert
from cloze.model import checkpoint
from cloze.model.families.models import Backbone, load_model
from cloze.model.hub.read import import_directory
from cloze.model.hub.stages import EXPORT, ExportConfig
from cloze.model.tasks.formats.squad import SquadExamples
from cloze.model.tasks.table import load_task
from cloze.pipeline.tokenizer.tokenizer import Tokenizer
from tests.model.layouts import attention_maps
from tests.parity.families import (
    FORWARD,
    GRADIENTS,
    Case,
    batch_of,
    their_inputs,
    their_logits,
    transformers,
)
from tests.tiny_models import tiny_config, tiny_model, write_checkpoint

WORDS = ("who", "where", "did", "the", "cat", "dog", "sit", "sat", "ran", "on", "mat", "and")
CASE = Case(family="longformer", changes={"attention_window": [4, 8], "pad_token_id": 3})


def globals_of(batch: dict[str, Tensor], kind: str) -> Tensor:
    """No global tokens, the first of every row, or several: a different number in each row, and
    none in the last.
    """
    chosen = torch.zeros_like(batch["attention_mask"])
    if kind == "first":
        chosen[:, 0] = True
    if kind == "several":
        chosen = (
            torch.rand(chosen.shape, generator=torch.Generator().manual_seed(0)) < 0.2
        ) & batch["attention_mask"]
        chosen[0, 0], chosen[-1] = True, False
    return chosen


@pytest.mark.parametrize("kind", ["none", "first", "several"])
@pytest.mark.parametrize("length", [5, 13, 32])
def test_logits_and_gradients_agree(length: int, kind: str) -> None:
    theirs = CASE.theirs()
    ours = CASE.ours(theirs)
    batch = batch_of(CASE, 4, length)
    chosen = globals_of(batch, kind)
    outputs = ours({**batch, "global_attention_mask": chosen})
    expected = their_logits(
        CASE, theirs(**their_inputs(theirs, batch), global_attention_mask=chosen.long()), batch
    )
    torch.testing.assert_close(outputs["mlm_logits"], expected["mlm_logits"], **FORWARD)
    outputs["mlm_logits"].square().mean().backward()
    expected["mlm_logits"].square().mean().backward()
    gradients = {
        CASE.hub.keys.to_hf(name): parameter.grad for name, parameter in ours.named_parameters()
    }
    compared = 0
    for name, parameter in theirs.named_parameters():
        if parameter.grad is None:
            assert "_global" in name
            assert kind == "none"
            assert gradients[name] is None
            continue
        compared += "_global" in name
        torch.testing.assert_close(
            gradients[name],
            parameter.grad,
            **GRADIENTS,
            msg=lambda text, name=name: f"{name}: {text}",
        )
    assert compared == (0 if kind == "none" else 12)


def test_pretraining_without_global_tokens_is_theirs_without_a_mask() -> None:
    theirs, batch = CASE.theirs(), batch_of(CASE, 3, 17)
    found = CASE.ours(theirs)(batch)["mlm_logits"]
    torch.testing.assert_close(
        found,
        their_logits(CASE, theirs(**their_inputs(theirs, batch)), batch)["mlm_logits"],
        **FORWARD,
    )


@pytest.mark.parametrize("window", [8, [4, 8]])
def test_an_export_opens_and_comes_back_as_it_was(tmp_path: Path, window: Any) -> None:
    changes = {**CASE.changes, "attention_window": window}
    directory = write_checkpoint(
        tmp_path / "checkpoint", tmp_path / "scratch", family="longformer", **changes
    )
    result = execute(EXPORT, ExportConfig(), {"checkpoint": directory}, str(tmp_path / "hub"))
    assert result.manifest.summary["max_logit_difference"] <= 1e-5
    import_directory(str(tmp_path / "hub"), str(tmp_path / "back"))
    before, after = checkpoint.load(directory), checkpoint.load(str(tmp_path / "back"))
    assert after.model == before.model
    assert after.state.keys() == before.state.keys()
    assert all(after.state[name].equal(tensor) for name, tensor in before.state.items())
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(
        str(tmp_path / "hub"), local_files_only=True
    )
    theirs.save_pretrained(str(tmp_path / "again"))  # with a list of windows, one a layer
    import_directory_of = CASE.hub.from_config(theirs.config.to_dict(), "config.json")
    assert import_directory_of == before.model


def roberta() -> Any:
    return tiny_model(family="roberta", pad_token_id=3, max_position_embeddings=16)


def test_a_converted_roberta_is_the_same_in_rows_that_the_window_covers() -> None:
    short, before = (
        roberta(),
        tiny_config(family="roberta", pad_token_id=3, max_position_embeddings=16),
    )
    config, state = convert(before, short.state_dict(), 64)
    assert (config.family, config.max_position_embeddings, config.attention_window) == (
        "longformer",
        64,
        16,
    )
    longer = load_model(config, state)
    batch = batch_of(CASE, 4, 9)  # every token is at most 8 away from every other
    torch.testing.assert_close(longer(batch)["mlm_logits"], short(batch)["mlm_logits"], **FORWARD)
    chosen = {**batch, "global_attention_mask": globals_of(batch, "first")}
    torch.testing.assert_close(
        longer(chosen)["mlm_logits"], short(batch)["mlm_logits"], **FORWARD
    )  # copied projections
    assert (
        longer({**batch_of(CASE, 2, 64), "masked_positions": torch.tensor([1, 63])})["mlm_logits"]
        .isfinite()
        .all()
    )


def test_converted_positions_are_the_learned_ones_again_and_again() -> None:
    short, before = (
        roberta(),
        tiny_config(family="roberta", pad_token_id=3, max_position_embeddings=16),
    )
    _, state = convert(before, short.state_dict(), 40)
    old, new = short.encoder.embeddings.position.weight, state["encoder.embeddings.position.weight"]
    assert len(new) == 40 + 4
    assert new[:20].equal(old)
    assert new[20:36].equal(old[4:])
    assert new[36:].equal(old[4:12])
    queries = [
        state[f"encoder.layers.1.attention.{name}.weight"] for name in ("query", "global_query")
    ]
    assert queries[0].equal(queries[1])
    assert queries[0].data_ptr() != queries[1].data_ptr()


def test_what_cannot_be_converted_is_refused() -> None:
    with pytest.raises(UsageError, match=r"family \(bert\) cannot be converted to longformer"):
        convert(tiny_config(), {}, 64)
    with pytest.raises(UsageError, match=r"positions \(8\) must be at least .*32"):
        convert(tiny_config(family="roberta"), {}, 8)


def test_windows_are_checked() -> None:
    for window, message in ((3, "multiple of 2"), ([4, 8, 4], "3 numbers for 2 layers")):
        with pytest.raises(ValueError, match=message):
            tiny_config(family="longformer", attention_window=window)


def test_maps_are_what_the_layer_attends_to() -> None:
    """Rows sum to 1; what is out of the window is 0 but at global tokens; a global
    token sees all.
    """
    model, batch = tiny_model(**{**CASE.changes, "family": "longformer"}), batch_of(CASE, 3, 20)
    ids, real = batch["input_ids"], batch["attention_mask"]
    maps = attention_maps(model.encoder, ids, real, 0 * ids)
    assert [tuple(found.shape) for found in maps] == [(3, 4, 20, 20)] * 2
    for found in maps:
        torch.testing.assert_close(found.sum(-1), torch.ones(3, 4, 20))
        assert (found[0, :, 0, real[0]] > 0).all()
    assert (maps[0][0, :, 10, [3, 7, 13]] == 0).all()
    assert (maps[0][0, :, 10, [0, 8, 12]] > 0).all()


# Global tokens of tasks: the kind says which (Beltagy et al., sections 5 and 6).


def pieces() -> Tokenizer:
    """A tokenizer with RoBERTa's frame, <s> A </s></s> B </s>, and the padding of `CASE`."""
    names = ["<s>", "</s>", "<unk>", "<pad>", "<mask>", *WORDS]
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>")
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    return Tokenizer.of(backend, "words")


def test_questions_are_global_as_in_their_question_answering(tmp_path: Path) -> None:
    """An export gives our logits, and finds the question itself, by the first </s>."""
    words, task = pieces(), load_task("squad", {"stride": 3, "answer_length": 2})
    torch.manual_seed(3)
    encoder = tiny_model(family="longformer", **CASE.changes).encoder
    backbone = Backbone(encoder=encoder, pooler=nn.Identity())
    ours = task.network(backbone, CASE.config, {}, 0.0).eval()
    with torch.no_grad():
        ours.get_submodule("span").weight.normal_()
    words.save(str(tmp_path / "tokenizer"))
    checkpoint.save_weights(
        str(tmp_path / "checkpoint"),
        model=CASE.config,
        state=ours.state_dict(),
        tokenizer=str(tmp_path / "tokenizer"),
        heads={"span": {}},
        task={"name": "squad", "options": {}, "max_length": 16},
    )
    checkpoint.finalize(str(tmp_path / "checkpoint"))
    hub = str(tmp_path / "hub")
    made = execute(EXPORT, ExportConfig(), {"checkpoint": str(tmp_path / "checkpoint")}, hub)
    assert 0 <= made.manifest.summary["max_logit_difference"] <= 1e-5
    assert made.manifest.summary["architecture"] == "LongformerForQuestionAnswering"
    theirs = transformers.AutoModelForQuestionAnswering.from_pretrained(hub, local_files_only=True)
    examples = SquadExamples(
        ids=["1", "2"],
        questions=["who sat", "where did the cat sit"],
        passages=["the cat sat on the mat and the dog ran on the mat", "the mat"],
        passage_of=[0, 1],
        answers=None,
    )
    samples = task.encode(examples, words, 16)
    assert len(samples) > 2
    batch = samples.batch(range(len(samples)))
    real = batch["attention_mask"]
    with torch.inference_mode():
        found = ours(batch)
        expected = theirs.eval()(input_ids=batch["input_ids"], attention_mask=real.long())
        first_alone = ours({**batch, "global_attention_mask": None})
    logits = torch.stack([expected.start_logits, expected.end_logits], dim=-1)
    torch.testing.assert_close(found[real], logits[real], **FORWARD)
    assert (found - first_alone)[real].abs().max() > 0.01
    import_directory(hub, str(tmp_path / "back"))
    before, after = (checkpoint.load(str(tmp_path / name)) for name in ("checkpoint", "back"))
    assert (after.model, after.heads, after.task) == (before.model, before.heads, before.task)
    assert all(after.state[name].equal(tensor) for name, tensor in before.state.items())
