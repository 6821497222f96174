"""Every family against transformers: the same logits and gradients from the same weights, both
ways, and no key left over.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cloze.core.stages.execute import execute
from cloze.model import checkpoint
from cloze.model.families.models import load_backbone
from cloze.model.hub.read import import_directory
from cloze.model.hub.stages import EXPORT, ExportConfig
from cloze.model.layers.embeddings import DELTA
from cloze.model.tasks.heads import SequenceClassifier
from tests.parity.families import (
    CASES,
    FIRST,
    FORWARD,
    GRADIENTS,
    Case,
    at_real,
    batch_of,
    case_id,
    their_inputs,
    their_logits,
    transformers,
    without_copies,
)
from tests.slices import few
from tests.tiny_models import tiny_batch, write_checkpoint, write_tokenizer

each_family = pytest.mark.parametrize("case", FIRST, ids=case_id)


@pytest.mark.parametrize(
    ("case", "length"),
    few(
        [
            pytest.param(case, length, id=f"{case_id(case)}-{length}")
            for case in CASES
            for length in (5, 32)
        ],
        *(f"{case_id(case)}-32" for case in CASES),
        f"{case_id(CASES[0])}-5",
    ),
)
def test_logits_and_gradients_agree(case: Case, length: int) -> None:
    theirs = case.theirs()
    ours = case.ours(theirs)
    batch = batch_of(case, 5, length)
    del batch[
        "masked_labels"
    ]  # nothing is taken back, replaced or scored: the models read the rows as they are
    outputs = ours(batch)
    expected = their_logits(case, theirs(**their_inputs(theirs, batch)), batch)
    assert expected
    for name, logits in expected.items():
        torch.testing.assert_close(at_real(outputs[name], batch), at_real(logits, batch), **FORWARD)
    sum(at_real(outputs[name], batch).square().mean() for name in expected).backward()
    sum(at_real(logits, batch).square().mean() for logits in expected.values()).backward()
    # of a table that is read moved, what moves it has the gradient
    moved = {
        name.replace(DELTA, ".weight"): parameter.grad
        for name, parameter in ours.named_parameters()
        if DELTA in name
    }
    own = {
        name: parameter.grad
        for name, parameter in ours.named_parameters()
        if parameter.grad is not None and DELTA not in name
    } | moved
    if case.family == "t5":  # a number times 1 / c has a gradient times c
        own = {
            name: gradient * (case.config.query_factor**2 if ".query." in name else 1)
            for name, gradient in own.items()
        }
    gradients = case.hub.to_state(own, model=case.config)
    compared = 0
    for name, parameter in theirs.named_parameters():
        if name in without_copies(case.hub, [name]) and parameter.grad is not None:
            if case.family == "transformer" and name == "model.shared.weight":
                # Marian's decoder starts with padding, whose embedding its class does not train
                gradients[name][case.config.pad_token_id] = 0.0
                parameter.grad[case.config.pad_token_id] = 0.0
            torch.testing.assert_close(
                gradients[name],
                parameter.grad,
                **GRADIENTS,
                msg=lambda text, name=name: f"{name}: {text}",
            )
            compared += 1
    assert compared >= 10


@each_family
def test_no_key_is_left_over_on_either_side(case: Case) -> None:
    theirs = case.theirs()
    names = without_copies(case.hub, theirs.state_dict())
    ours = case.hub.exported(case.ours(theirs).state_dict())
    assert {case.hub.keys.to_hf(name) for name in ours} == names
    assert {case.hub.keys.from_hf(name) for name in names} == set(ours)


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if frozenset({"classifier"}) in case.hub.architectures],
    ids=case_id,
)
def test_classifiers_agree(case: Case) -> None:
    theirs = case.theirs({"classifier": {"num_labels": 3}})
    state = case.hub.from_state(theirs.state_dict(), "theirs", None, case.config)
    encoder, pooler = load_backbone(case.config, state)
    model = SequenceClassifier(encoder, pooler, case.config.hidden_size, 3, 0.0).eval()
    model.load_state_dict(
        {name: tensor for name, tensor in state.items() if name in model.state_dict()}
    )
    batch = batch_of(case, 3, 21)
    with torch.inference_mode():
        torch.testing.assert_close(
            model(batch), theirs(**their_inputs(theirs, batch)).logits, **FORWARD
        )


@pytest.mark.parametrize(
    "case",
    few(
        [pytest.param(case, id=case_id(case)) for case in CASES],
        *(case_id(case) for case in FIRST),
    ),
)
def test_an_export_opens_and_comes_back_as_it_was(case: Case, tmp_path: Path) -> None:
    directory = write_checkpoint(
        tmp_path / "checkpoint", tmp_path / "scratch", family=case.family, **case.changes
    )
    result = execute(EXPORT, ExportConfig(), {"checkpoint": directory}, str(tmp_path / "hub"))
    assert result.manifest.summary["max_logit_difference"] <= 1e-5
    auto = transformers.AutoModel.from_pretrained(str(tmp_path / "hub"), local_files_only=True)
    assert result.manifest.summary["architecture"].startswith(
        type(auto).__name__.removesuffix("Model")
    )
    found = import_directory(str(tmp_path / "hub"), str(tmp_path / "back"), family=case.family)
    before, after = checkpoint.load(directory), checkpoint.load(str(tmp_path / "back"))
    assert after.model == before.model
    assert after.state.keys() == before.state.keys()
    kept = case.hub.exported(before.state)
    assert set(found.fresh) == before.state.keys() - kept.keys()
    assert all(after.state[name].equal(tensor) for name, tensor in kept.items())


@pytest.mark.parametrize(
    "case",
    # An encoder-decoder is saved whole, and its logits need no other weights.
    [case for case in FIRST if not case.config.is_encoder_decoder],
    ids=case_id,
)
def test_an_encoder_alone_is_imported_with_new_heads(case: Case, tmp_path: Path) -> None:
    theirs = case.theirs()
    checkpoint.copy_files(write_tokenizer(tmp_path / "scratch"), str(tmp_path / "hub"))
    own, prefix = case.ours(theirs).state_dict(), theirs.base_model_prefix
    encoder = {
        name: tensor
        for name, tensor in theirs.state_dict().items()
        if name.startswith(f"{prefix}.")
    }
    theirs.save_pretrained(str(tmp_path / "hub"), state_dict=encoder)
    found = import_directory(
        str(tmp_path / "hub"), str(tmp_path / "checkpoint"), family=case.family
    )
    heads = {name.split(".")[0] for name in own} - {
        "encoder",
        "pooler",
    }  # transformers' bases hold the pooler
    assert {name.split(".")[0] for name in found.fresh} - {"pooler"} == heads
    loaded = checkpoint.load(str(tmp_path / "checkpoint"))
    assert all(loaded.state[name].equal(own[name]) for name in own if name.startswith("encoder."))


def test_cases_are_told_apart() -> None:
    """The families give different logits for like weights, so no parity above is
    another family's.
    """
    batch = tiny_batch()
    seen = []
    for family in ("bert", "megatron-bert", "roberta"):
        case = Case(family=family)
        seen.append(case.ours(case.theirs(seed=1))(batch)["mlm_logits"])
    assert not torch.allclose(seen[0], seen[1], atol=1e-2)
    assert not torch.allclose(seen[0], seen[2], atol=1e-2)
