"""XLNet's query stream and memory against transformers: `perm_mask`, `target_mapping` and `mems`
of the same order give the same logits, gradients and losses.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from cloze.core.errors import DataError
from cloze.labs.xlnet.xlnet import HUB
from cloze.model.layers.batch import IGNORE_INDEX
from tests.parity.families import FORWARD, GRADIENTS, Case, batch_of, case_id

FILLER = 3
CASES = [
    Case(family="xlnet"),
    Case(family="xlnet", changes={"memory": 5}),
    Case(family="xlnet", changes={"memory": 7, "num_hidden_layers": 3}),
]


def with_order(case: Case, rows: int, length: int) -> dict[str, Tensor]:
    """Rows with masked tokens behind the memory in a random order, and filler among them."""
    start = getattr(case.config, "memory", 0)
    batch = batch_of(case, rows, length)
    real, columns = batch["attention_mask"], torch.arange(length)
    real[:, : start + 3] = True  # theirs has no padding in its memory, nor segments
    batch["token_type_ids"] = batch["token_type_ids"] * (columns >= start)
    ids = batch["input_ids"].masked_fill(real & (batch["input_ids"] == 0), 7)
    masked = (torch.rand(rows, length) < 0.4) & real & (columns >= start)
    masked[:, start] = False
    masked[:, start + 1 : start + 3] = True
    draws = torch.rand(rows, length).masked_fill(~masked, 2.0)
    order = (draws.argsort(dim=1).argsort(dim=1) + 1) * masked - (columns < start).long()
    positions = masked.flatten().nonzero().squeeze(1)
    filler = torch.zeros(FILLER, dtype=torch.int64)
    return {
        **batch,
        "input_ids": ids,
        "target_order": order,
        "masked_positions": torch.cat([positions, filler]),
        "masked_labels": torch.cat([ids.flatten()[positions], filler + IGNORE_INDEX]),
    }


def their_logits(theirs: Any, batch: dict[str, Tensor], start: int) -> Tensor:
    """Logits at the targets, in the order of our positions, float [M, V]."""
    order, ids = batch["target_order"][:, start:], batch["input_ids"]
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = {name: batch[name][:, start:].long() for name in names}
    if start:
        with torch.no_grad():
            before = theirs.transformer(ids[:, :start], use_mems=True)
        inputs = {**inputs, "mems": before.mems, "use_mems": True}
    hidden = (order[:, None, :] > 0) & (order[:, None, :] >= order[:, :, None])
    targets = [row.nonzero().squeeze(1) for row in order > 0]
    mapping = torch.zeros(len(order), max(map(len, targets)), order.shape[1])
    for row, columns in enumerate(targets):
        mapping[row, torch.arange(len(columns)), columns] = 1.0
    logits = theirs(**inputs, perm_mask=hidden.float(), target_mapping=mapping).logits
    return torch.cat([logits[row, : len(columns)] for row, columns in enumerate(targets)])


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_query_stream_and_memory_agree(case: Case) -> None:
    theirs = case.theirs()
    with torch.no_grad():
        theirs.transformer.mask_emb.normal_()
    ours, batch = case.ours(theirs), with_order(case, 6, 24)
    real = batch["masked_labels"] != IGNORE_INDEX
    logits = ours(batch)["mlm_logits"][real]
    expected = their_logits(theirs, batch, getattr(case.config, "memory", 0))
    torch.testing.assert_close(logits, expected, **FORWARD)
    ours.predicts_all_positions = False
    torch.testing.assert_close(ours(batch)["mlm_logits"][real], logits)
    labels = batch["masked_labels"][real]
    cross_entropy(logits, labels).backward()
    cross_entropy(expected, labels).backward()
    own = {name: p.grad for name, p in ours.named_parameters() if p.grad is not None}
    gradients = HUB.to_state(own, model=case.config)
    compared = 0
    for name, parameter in theirs.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(gradients[name], parameter.grad, **GRADIENTS)
            compared += 1
    assert compared == len(gradients) >= 30
    assert "transformer.mask_emb" in gradients


def test_a_target_sees_only_what_comes_before_it() -> None:
    case = Case(family="xlnet", changes={"memory": 2})
    ours, batch = case.ours(case.theirs()), with_order(case, 4, 16)
    real, order = batch["masked_labels"] != IGNORE_INDEX, batch["target_order"]
    before = ours(batch)["mlm_logits"][real]
    numbers = order.flatten()[batch["masked_positions"][real]]
    for number in range(1, int(order.max()) + 1):
        changed = torch.where(
            order == number, (batch["input_ids"] + 1) % 20 + 5, batch["input_ids"]
        )
        after = ours({**batch, "input_ids": changed})["mlm_logits"][real]
        moved = (after - before).abs().amax(dim=1) > 1e-4
        rows = batch["masked_positions"][real] // 16
        later = (numbers > number) & (order == number).any(dim=1)[rows]
        assert moved.equal(later)


def test_classifiers_of_rows_that_end_with_cls_are_refused() -> None:
    config = Case(family="xlnet").hub.to_config(Case(family="xlnet").config, {"classifier": {}}, {})
    assert HUB.from_config(config, "here") == Case(family="xlnet").config
    with pytest.raises(DataError, match=r"summary_type \('last'\) is not 'first'"):
        HUB.from_config({**config, "summary_type": "last"}, "there")
