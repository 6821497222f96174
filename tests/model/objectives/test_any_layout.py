"""What is learnt does not depend on how the tokens lie: loss and every gradient, of every family
and objective, in every layout.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cloze.model.data import layouts
from cloze.model.layers import layout as layout_module
from cloze.model.layers.layout import BatchLayout
from cloze.model.train.evaluate.scoring import PretrainModule
from cloze.model.train.precision import Precision
from tests.model.layouts import pack, sequences_of, varlen_on_cpu
from tests.slices import few
from tests.tiny_models import TRANSFORMERS, tiny_batch, tiny_config, tiny_model, variants

LENGTH, FILLER = 29, 5
ZERO = (
    ".key.bias",
    ".position_key.bias",
    "relative.norm.bias",
)  # softmax is (nearly) blind to them: all rounding
CASES = [
    *(
        (family, changes, None)
        for family in TRANSFORMERS
        for changes in variants(family)
        if family not in ("longformer", "xlnet")  # which keep padding
    ),
    ("bert", {}, ("clm",)),
    ("roberta", {}, ("clm", "mlm")),
    ("modern", {"local_attention": 4}, ("clm", "mntp")),
]


def uneven(
    names: tuple[str, ...], packed_rows: bool
) -> tuple[dict[str, Any], np.ndarray[Any, Any] | None]:
    """Rows of many lengths with filler among the masked positions; and which of them are read from
    left to right, if any is.
    """
    batch = tiny_batch(rows=10, length=LENGTH)
    places = batch["masked_positions"]
    kept = batch["attention_mask"].flatten().roll(-1)[places] & (
        places % LENGTH > 0
    )  # a token on both sides, as spans have
    batch |= {name: batch[name][kept] for name in ("masked_positions", "masked_labels")}
    if packed_rows:
        batch = {**batch, **pack(batch), "pair_labels": batch["pair_labels"][:5]}
    rows, width = batch["input_ids"].shape
    causal = None
    if "clm" in names:
        causal = np.ones(rows, np.bool_) if names == ("clm",) else np.arange(rows) % 3 == 0
        read = torch.from_numpy(causal)
        kept = ~read[batch["masked_positions"] // width]
        batch |= {name: batch[name][kept] for name in ("masked_positions", "masked_labels")}
        named = batch["attention_mask"] & read[:, None] & (torch.arange(width) > 0)
        named &= ~batch.get("sequence_first", torch.zeros_like(named))
        batch["causal_positions"] = named.flatten().nonzero().squeeze(1) - 1
        batch["causal_labels"] = batch["input_ids"].flatten()[batch["causal_positions"] + 1]
    batch["masked_positions"] = torch.cat(
        [batch["masked_positions"], torch.zeros(FILLER, dtype=torch.int64)]
    )
    batch["masked_labels"] = torch.cat([batch["masked_labels"], torch.full((FILLER,), -100)])
    if "mntp" in names:
        batch["prediction_positions"] = (batch["masked_positions"] - 1).clamp(min=0)
    return batch, causal


def laid_out(batch: dict[str, Any], causal: np.ndarray[Any, Any] | None) -> dict[str, BatchLayout]:
    sequences = sequences_of(batch)
    if causal is not None:
        sequences = replace(sequences, causal=causal[sequences.first // sequences.shape[1]])
    made = {"rows": layouts.rows, "buckets": layouts.buckets, "packed": layouts.packed}
    return {kind: make(sequences) for kind, make in made.items()}


def learnt(scoring: PretrainModule, batch: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    torch.manual_seed(0)  # of what a generator draws
    scoring.zero_grad(set_to_none=True)
    loss, _ = scoring(
        batch, torch.tensor([float(max(1, count)) for count in scoring.count_targets(batch)])
    )
    loss.backward()
    return loss.detach(), {
        name: p.grad for name, p in scoring.model.named_parameters() if p.grad is not None
    }


def norm(gradients: dict[str, Tensor]) -> float:
    return float(nn.utils.get_total_norm(list(gradients.values())))


WAYS = (("fp32", False), ("fp32", True), ("bf16", False))


@pytest.mark.parametrize(
    ("family", "changes", "names", "precision", "packed_rows"),
    few(
        [
            pytest.param(*case, *way, id=f"{case[0]}-{number}-{'-'.join(map(str, way))}")
            for number, case in enumerate(CASES)
            for way in WAYS
        ],
        *(f"{case[0]}-{number}-fp32-False" for number, case in enumerate(CASES)),
        *(f"{CASES[0][0]}-0-{'-'.join(map(str, way))}" for way in WAYS),
    ),
)
def test_loss_and_gradients_are_those_of_padded_rows(
    family: str,
    changes: dict[str, Any],
    names: tuple[str, ...] | None,
    packed_rows: bool,
    precision: Precision,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        layout_module, "varlen_attention", varlen_on_cpu
    )  # the kernel exists on GPUs alone
    changes = {
        **changes,
        "family": family,
        "max_position_embeddings": 2 * LENGTH,
        "initializer_range": 0.1,
    }
    config = tiny_config(**changes)
    if names is None:
        names = config.default_objectives(
            "nsp" if "pair" in config.heads and not packed_rows else None
        )
    scoring = PretrainModule(
        tiny_model(**changes), names, precision, weights=config.loss_weights()
    ).train()
    batch, causal = uneven(names, packed_rows)
    found = {
        kind: learnt(scoring, {**batch, "layout": layout})
        for kind, layout in laid_out(batch, causal).items()
    }
    expected, gradients = found.pop("rows")
    if not packed_rows and causal is None:
        found["none"] = learnt(scoring, batch)
    whole = norm(gradients)
    same, alike = (
        (1e-6, 1e-5) if precision == "fp32" else (1e-3, 0.1)
    )  # in bf16 the smallest are mostly rounding
    for kind, (loss, own) in found.items():
        torch.testing.assert_close(loss, expected, atol=0.0, rtol=same)
        assert norm(own) == pytest.approx(whole, rel=same), kind
        assert own.keys() == gradients.keys()
        for name, gradient in gradients.items():
            scale = max(
                float(gradient.norm()), 1e-3 * whole if name.endswith(ZERO) else 1e-6 * whole
            )
            assert float((own[name] - gradient).norm()) <= alike * scale, (kind, name)
