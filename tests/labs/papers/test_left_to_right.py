"""Left-to-right models: what a token sees, which one it names, and what stands on top."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cloze.model.families.models import new_backbone
from cloze.model.layers.batch import unmask
from cloze.model.objectives import objectives
from cloze.model.tasks.heads import TokenClassifier
from tests.model.layouts import laid
from tests.model.scores import score
from tests.tiny_models import (
    tiny_batch,
    tiny_config,
    tiny_model,
)


def test_left_to_right_sees_nothing_that_comes_later() -> None:
    model, batch = tiny_model(family="ltr"), tiny_batch(length=12)
    batch = {name: tensor for name, tensor in batch.items() if not name.startswith("masked")}
    before = model(batch)["lm_logits"]
    changed = batch["input_ids"].clone()
    changed[0, 7] = 5 + (changed[0, 7] - 4) % 20
    after = model({**batch, "input_ids": changed})["lm_logits"]
    torch.testing.assert_close(after[0, :7], before[0, :7])
    assert not torch.allclose(after[0, 7:], before[0, 7:])


def test_left_to_right_names_the_next_token_of_the_unmasked_row() -> None:
    batch, model = tiny_batch(), tiny_model(family="ltr")
    objective = objectives(("lm",))[0]
    outputs = model(batch)
    found = score(objective, outputs, batch)
    ids, logs = unmask(batch), outputs["lm_logits"].log_softmax(-1)
    expected = [
        -logs[r, t, ids[r, t + 1]]
        for r in range(len(ids))
        for t in range(ids.shape[1] - 1)
        if batch["attention_mask"][r, t + 1]
    ]
    torch.testing.assert_close(found.total, torch.stack(expected).sum(), atol=1e-4, rtol=1e-5)
    assert int(found.count) == len(expected) == int(objective.targets(batch).sum())


def test_no_sequence_of_a_packed_row_names_the_next_ones_first_token() -> None:
    batch = {
        name: tensor
        for name, tensor in tiny_batch(rows=2, length=12).items()
        if not name.startswith("masked")
    }
    lengths = batch["attention_mask"].sum(dim=1).tolist()
    first_of = torch.zeros_like(batch["attention_mask"])
    first_of[0, [0, 2]] = first_of[1, [0, 1]] = (
        True  # two sequences a row, that which begins the second of one token
    )
    packed = laid({**batch, "sequence_first": first_of}, "padded")
    model, objective = tiny_model(family="ltr"), objectives(("lm",))[0]
    found = score(objective, model(packed), packed)
    assert int(found.count) == int(objective.targets(packed).sum()) == sum(lengths) - 4
    first = {**batch, "input_ids": batch["input_ids"].clone()}
    first["input_ids"][0, 1] = 7  # the end of the first sequence: no other sequence sees it
    torch.testing.assert_close(
        model({**packed, "input_ids": first["input_ids"]})["lm_logits"][0, 2:],
        model(packed)["lm_logits"][0, 2:],
    )


@pytest.mark.parametrize("bilstm", [False, True])
def test_left_to_right_pools_where_the_row_has_been_read(bilstm: bool) -> None:
    """The vector of a row depends on its last token, and not on padding."""
    torch.manual_seed(0)
    encoder, pooler = new_backbone(tiny_config(family="ltr", bilstm=bilstm))
    encoder.eval()
    ids, mask = (
        torch.tensor([[2, 7, 8, 9, 0, 0]]),
        torch.tensor([[True, True, True, True, False, False]]),
    )

    def vector(ids: Tensor, mask: Tensor) -> Tensor:
        found: Tensor = pooler(encoder(ids, mask, 0 * ids), mask)
        return found

    before = vector(ids, mask)
    torch.testing.assert_close(vector(ids[:, :4], mask[:, :4]), before)
    assert not torch.allclose(vector(torch.tensor([[2, 7, 8, 11, 0, 0]]), mask), before)


@pytest.mark.parametrize("bilstm", [False, True])
def test_a_bilstm_lets_a_word_s_label_depend_on_later_words(bilstm: bool) -> None:
    """Devlin et al. 2019, table 5: the BiLSTM precedes heads on every position, too."""
    torch.manual_seed(0)
    config = tiny_config(family="ltr", bilstm=bilstm)
    network = TokenClassifier(new_backbone(config), config.hidden_size, 3, 0.0, "head").eval()
    ids, mask = torch.tensor([[2, 7, 8, 9, 0]]), torch.tensor([[True, True, True, True, False]])
    batch = {"input_ids": ids, "attention_mask": mask, "token_type_ids": 0 * ids}
    before = network(batch)
    assert before.shape == (1, 5, 3)
    after = network({**batch, "input_ids": torch.tensor([[2, 7, 8, 11, 0]])})
    assert torch.allclose(after[0, :3], before[0, :3]) != bilstm
    shorter = network({name: value[:, :4] for name, value in batch.items()})
    torch.testing.assert_close(shorter, before[:, :4])
