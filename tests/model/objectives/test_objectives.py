"""Sums and counts: however a batch is split, losses, accuracies and gradients are those of the
whole.
"""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from cloze.core.errors import UsageError
from cloze.model.families.registry import FAMILIES, config_class
from cloze.model.layers.cross_entropy import LazyLogits, _fused_rows, summed_cross_entropy
from cloze.model.objectives import OBJECTIVES, choose, objectives, trained_heads
from cloze.model.tasks.source import TaskObjective
from cloze.model.train.evaluate.scoring import PretrainModule, WeightedLosses
from tests.model.scores import score, total_loss
from tests.tiny_models import dataset_info, tiny_batch, tiny_config, tiny_model, write_tokenizer

MLM, NSP = (partial(score, objective) for objective in objectives(("mlm", "nsp")))


def rows_of(batch: dict[str, Tensor], start: int, stop: int) -> dict[str, Tensor]:
    """The rows [start, stop) of a batch as a batch of their own, as a collator would make it."""
    length = batch["input_ids"].shape[1]
    inside = (batch["masked_positions"] >= start * length) & (
        batch["masked_positions"] < stop * length
    )
    part = {
        name: batch[name][start:stop]
        for name in ("input_ids", "attention_mask", "token_type_ids", "pair_labels")
    }
    part["masked_positions"] = batch["masked_positions"][inside] - start * length
    part["masked_labels"] = batch["masked_labels"][inside]
    return part


def test_values_are_those_of_the_formula() -> None:
    batch = tiny_batch()
    outputs = tiny_model()(batch)
    masked, pair = MLM(outputs, batch), NSP(outputs, batch)
    logs = outputs["mlm_logits"].log_softmax(-1)
    torch.testing.assert_close(
        masked.total, -logs[torch.arange(len(logs)), batch["masked_labels"]].sum()
    )
    assert int(masked.count) == len(batch["masked_labels"])
    assert int(pair.count) == len(batch["pair_labels"]) - 1  # one row has no pair
    torch.testing.assert_close(
        pair.total,
        functional.cross_entropy(
            outputs["pair_logits"][:-1], batch["pair_labels"][:-1], reduction="sum"
        ),
    )
    assert int(pair.correct) == int(
        (outputs["pair_logits"][:-1].argmax(-1) == batch["pair_labels"][:-1]).sum()
    )
    torch.testing.assert_close(
        total_loss([masked, pair]), masked.total / masked.count + pair.total / pair.count
    )


@settings(max_examples=8, deadline=None)
@given(st.integers(2, 7), st.integers(0, 50), st.data())
def test_split_micro_batches_give_the_loss_and_gradient_of_the_whole(
    rows: int, seed: int, data: st.DataObject
) -> None:
    batch = tiny_batch(rows=rows, seed=seed)
    cuts = sorted({0, rows, *data.draw(st.lists(st.integers(1, rows - 1), max_size=3))})
    parts = [rows_of(batch, start, stop) for start, stop in itertools.pairwise(cuts)]

    whole_model, split_model = tiny_model(), tiny_model()
    outputs = whole_model(batch)
    whole = [MLM(outputs, batch), NSP(outputs, batch)]
    whole_loss = total_loss(whole)
    whole_loss.backward()

    counts = [item.count for item in whole]
    losses, correct = torch.zeros(()), 0
    for part in parts:
        outputs = split_model(part)
        sums = [MLM(outputs, part), NSP(outputs, part)]
        loss = total_loss(sums, counts)
        loss.backward()
        losses += loss.detach()
        correct += int(sum(int(item.correct) for item in sums))
    torch.testing.assert_close(losses, whole_loss.detach())
    assert correct == sum(int(item.correct) for item in whole)
    for (name, first), second in zip(
        whole_model.named_parameters(), split_model.parameters(), strict=True
    ):
        torch.testing.assert_close(
            first.grad,
            second.grad,
            atol=1e-6,
            rtol=1e-4,
            msg=lambda text, name=name: f"{name}: {text}",
        )


@pytest.mark.parametrize("labels", [[], [-100, -100]])
def test_nothing_to_predict_is_a_loss_of_zero_with_a_gradient(labels: list[int]) -> None:
    logits = torch.randn(len(labels), 7, requires_grad=True)
    item = MLM({"mlm_logits": logits}, {"masked_labels": torch.tensor(labels, dtype=torch.int64)})
    assert (float(item.total.detach()), int(item.count), int(item.correct)) == (0.0, 0, 0)
    loss = total_loss([item])
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert logits.grad is not None
    assert not logits.grad.any()


def test_filler_labels_take_no_part() -> None:
    logits, labels = torch.randn(5, 7), torch.tensor([1, -100, 2, -100, 3])
    with_filler = MLM({"mlm_logits": logits}, {"masked_labels": labels})
    without = MLM({"mlm_logits": logits[labels >= 0]}, {"masked_labels": labels[labels >= 0]})
    torch.testing.assert_close(with_filler.total, without.total)
    assert int(with_filler.count) == int(without.count) == 3
    assert int(with_filler.correct) == int(without.correct)


def test_losses_are_fp32_under_autocast() -> None:
    batch, model = tiny_batch(), tiny_model()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = model(batch)
        sums = [MLM(outputs, batch), NSP(outputs, batch)]
        loss = total_loss(sums)
    assert outputs["mlm_logits"].dtype == torch.bfloat16
    assert {item.total.dtype for item in sums} == {torch.float32} == {loss.dtype}
    expected = functional.cross_entropy(
        outputs["mlm_logits"].double(), batch["masked_labels"], reduction="sum"
    )
    torch.testing.assert_close(sums[0].total.double(), expected, atol=1e-4, rtol=1e-6)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_loss_of_weight_zero_is_logged_and_moves_nothing(precision: Any) -> None:
    """Zero as a gradient would let an optimizer's decay and moments move the head."""
    batch, found = tiny_batch(), []
    for weights in ({"nsp": 0.0}, {}):
        module = PretrainModule(tiny_model(), ("mlm", "nsp"), precision, weights=weights)
        loss, figures = module.train()(batch, torch.tensor(module.count_targets(batch)))
        loss.backward()
        found.append((loss.detach(), figures, dict(module.model.named_parameters())))
    (alone, logged, own), (both, figures, _) = found
    assert torch.equal(logged, figures)
    pair = figures[0, 1] / (batch["pair_labels"] >= 0).sum()
    torch.testing.assert_close(alone.double() + pair, both.double(), atol=1e-5, rtol=1e-5)
    untouched = {name for name, weight in own.items() if weight.grad is None}
    assert untouched == {name for name in own if name.startswith(("pair.", "pooler."))}


def test_pretraining_and_tasks_add_up_losses_in_one_way() -> None:
    for module in (PretrainModule, TaskObjective):
        assert issubclass(module, WeightedLosses)
        assert not {"forward", "_loss", "set_compiled"} & vars(module).keys()


def test_the_table_holds_what_the_files_say_of_themselves() -> None:
    assert [objective.name for objective in objectives(OBJECTIVES)] == list(OBJECTIVES)
    heads = {head for family in FAMILIES for head in config_class(family)().heads}
    assert {objective.head for objective in objectives(OBJECTIVES)} - {None} == heads
    with pytest.raises(UsageError, match="did you mean 'nsp'"):
        objectives(("nps",))
    with pytest.raises(UsageError, match="no objective"):
        total_loss([])


def test_a_family_trains_on_what_its_dataset_is_made_for(tmp_path: Path) -> None:
    info = dataset_info(write_tokenizer(tmp_path))
    assert choose(tiny_config(), info) == ("mlm", "nsp")
    assert choose(tiny_config(), replace(info, pair_task="sop")) == ("mlm", "sop")
    assert choose(tiny_config(), replace(info, pair_task=None)) == ("mlm",)
    assert choose(tiny_config(), info, ["mlm"]) == ("mlm",)
    with pytest.raises(
        UsageError,
        match=(
            r"objective \(sop\) needs a dataset with SOP pairs, this one \(recipe bert\) has pairs "
            r"for nsp"
        ),
    ):
        choose(tiny_config(), info, ["mlm", "sop"])
    with pytest.raises(UsageError, match="did you mean 'mlm'"):
        choose(tiny_config(), info, ["mln"])
    for width, wanted in ((16, True), (32, False)):
        names, teacher = ["mlm", "cosine"], tiny_config(hidden_size=width)
        with nullcontext() if wanted else pytest.raises(UsageError, match="use distill.hidden"):
            assert choose(tiny_config("distilbert"), info, names, teacher) == tuple(names)
    with pytest.raises(UsageError, match=r"type_vocab_size \(1\) is too small for sentence pairs"):
        choose(tiny_config(type_vocab_size=1), info)


def test_details_tell_masked_random_and_kept_apart() -> None:
    logits = torch.full((4, 9), -1.0)
    for row, answer in enumerate((5, 6, 7, 5)):
        logits[row, answer] = 1.0
    logits[1, 2] = 0.0
    batch = {
        "input_ids": torch.tensor([[4, 8, 7, 4]]),  # [MASK], a random piece, kept, filler
        "masked_positions": torch.tensor([0, 1, 2, 0]),
        "masked_labels": torch.tensor([5, 2, 7, -100]),
        "mask_id": torch.tensor(4),
    }
    details = objectives(("mlm",))[0].details
    assert details is not None
    found = {
        name: (int(total), int(count))
        for name, (total, count) in details({"mlm_logits": logits}, batch).items()
    }
    assert found == {
        "top5_accuracy": (3, 3),
        "masked_accuracy": (1, 1),
        "random_accuracy": (0, 1),
        "kept_accuracy": (1, 1),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cross_entropy_in_rows_is_torchs(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits = (3 * torch.randn(257, 101)).to(dtype).requires_grad_()
    labels = torch.randint(101, (257,))
    labels[::5] = -100
    labels[1] = logits[1].argmax()
    total, correct = summed_cross_entropy(logits, labels)
    whole = logits.float()
    expected = torch.nn.functional.cross_entropy(whole, labels, reduction="sum")
    torch.testing.assert_close(total, expected, atol=1e-4, rtol=1e-6)
    assert int(correct) == int((whole.argmax(-1) == labels).sum()) >= 1
    share = (
        171.49 / 512
    )  # of the loss in what is differentiated: rounded to bf16 it would be 171 / 512, 0.3 % less
    (found,), (wanted,) = (torch.autograd.grad(share * loss, logits) for loss in (total, expected))
    tolerance = (
        {"atol": 1e-6, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 1e-5, "rtol": 2**-7}
    )  # bf16's last digit
    torch.testing.assert_close(found, wanted, **tolerance)
    projected = (
        found.double() * wanted.double()
    ).sum() / wanted.double().square().sum()  # single roundings cancel out in it
    assert float(projected) == pytest.approx(1.0, abs=5e-4)
    with torch.no_grad():
        assert summed_cross_entropy(logits, labels)[0].equal(total.detach())
    assert summed_cross_entropy(logits[:0], labels[:0])[0] == 0


@pytest.mark.parametrize("form", ["rows", "traced", "compiled rows", "lazy"])
@settings(max_examples=25)
@given(data=st.data())
def test_a_label_that_ties_with_a_prediction_is_not_right(form: str, data: st.DataObject) -> None:
    """In bf16, equal logits are common; the figure may not grow with the precision's coarseness."""
    rows = data.draw(st.integers(1, 40))
    values = st.lists(st.sampled_from([-1.0, 0.0, 0.5]), min_size=7, max_size=7)
    logits = torch.tensor(data.draw(st.lists(values, min_size=rows, max_size=rows)))
    numbers = st.lists(st.sampled_from([-100, *range(7)]), min_size=rows, max_size=rows)
    labels = torch.tensor(data.draw(numbers))
    expected = int((logits.numpy().argmax(axis=1) == labels.numpy()).sum())
    for dtype in (torch.float32, torch.bfloat16):
        given = logits.to(dtype)
        if form == "compiled rows":
            _, correct, _ = _fused_rows(given, labels, 7, learns=False)
        elif form == "traced":
            traced = torch.compile(summed_cross_entropy, backend="eager", dynamic=True)
            _, correct = traced(given, labels)
        elif form == "lazy":  # the states are the logits
            lazy = LazyLogits(given, torch.eye(7, dtype=dtype), None, False)
            _, correct = summed_cross_entropy(lazy, labels)
        else:
            _, correct = summed_cross_entropy(given, labels)
        assert int(correct) == expected


def test_rows_that_do_not_fit_are_refused_in_one_sentence(tmp_path: Path) -> None:
    info = replace(
        dataset_info(write_tokenizer(tmp_path)), recipe="lm", pair_task=None, masks={"rule": "none"}
    )
    gpt2, bert = tiny_config(family="gpt2"), tiny_config()
    assert choose(gpt2, info) == ("lm",)
    assert choose(bert, info, ["clm"]) == ("clm",)
    with pytest.raises(
        UsageError, match=r"objective \(mlm\) needs rows with masks, .* or train --objective clm"
    ):
        choose(bert, info)
    with pytest.raises(UsageError, match=r"objective \(mntp\) needs rows with masks"):
        choose(bert, info, ["clm", "mntp"])
    with pytest.raises(
        UsageError,
        match=(
            r"objective \(mlm\) needs rows with masks, .* or train a model that reads left to right"
        ),
    ):
        choose(tiny_config(family="electra"), info, ["mlm"])
    pairs = replace(info, recipe="bert", pair_task="nsp", masks={"rule": "token"})
    for model, names in ((gpt2, None), (bert, ["clm"])):
        with pytest.raises(
            UsageError, match=r"needs text that runs on, .* \(recipe bert\) are pairs for nsp"
        ) as caught:
            choose(model, pairs, names)
        assert "\n" not in str(caught.value)


def test_both_ways_go_together_with_masks_alone(tmp_path: Path) -> None:
    info = replace(dataset_info(write_tokenizer(tmp_path)), pair_task=None)
    bert = tiny_config()
    for names in (["clm"], ["mntp"], ["clm", "mntp"], ["mlm", "clm"]):
        assert choose(bert, info, names) == tuple(names)
    for names in (["mlm", "mntp"], ["clm", "mlm", "mntp"]):
        with pytest.raises(
            UsageError, match="cannot be combined; use clm alone, or with one of mlm and mntp"
        ):
            choose(bert, info, names)
    with pytest.raises(UsageError, match=r"objective \(clm\) cannot be that of longformer models"):
        choose(tiny_config(family="longformer"), info, ["clm"])
    with pytest.raises(
        UsageError, match=r"objective \(clm\) needs a masked_lm head, which gpt2 models do not have"
    ):
        choose(tiny_config(family="gpt2"), info, ["clm"])
    with pytest.raises(UsageError, match=r"objective \(clm\) knows no teacher"):
        choose(tiny_config(family="distilbert"), info, ["clm"], bert)
    assert trained_heads(bert, ["mlm", "nsp"]) == bert.heads
    assert trained_heads(bert, ["clm", "mntp"])["masked_lm"] == {"objectives": ["clm", "mntp"]}
