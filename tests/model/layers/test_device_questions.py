"""No forward or backward pass asks the device for a number: each would make the host wait until the
GPU has caught up. And none mixes tensors of the host with the device's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from cloze.model.families.models import new_model
from cloze.model.layers import layout as layout_module
from cloze.model.objectives import objectives
from cloze.model.train.evaluate.scoring import PretrainModule
from tests.model.layouts import Choice, laid, pack, varlen_on_cpu
from tests.slices import few
from tests.tiny_models import TRANSFORMERS, tiny_batch, tiny_config

CHANGES: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 8},
    "electra": {"embedding_size": 8},
    "modern": {"local_attention": 4},
    "deberta": {
        "pretraining": "rtd",
        "enhanced_mask_decoder": True,
        "conv_kernel_size": 3,
        "position_buckets": 8,
    },
    "longformer": {"attention_window": (4, 4)},
}
QUESTIONS = {
    "_local_scalar_dense",
    "item",
    "nonzero",
    "bincount",
    "masked_select",
    "equal",
    "is_nonzero",
    "_unique2",
}


class NoQuestions(TorchDispatchMode):
    """Refuses every operation whose answer, or whose shape, depends on a tensor's values."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        name = func.overloadpacket.__name__
        by_truth = name in ("index", "index_put", "index_put_") and any(
            part is not None and part.dtype == torch.bool for part in args[1]
        )
        if name in QUESTIONS or by_truth:
            raise AssertionError(f"{name} asks the device")
        return func(*args, **(kwargs or {}))


def step_of(
    family: str, packed_rows: bool, choice: Choice, **changes: Any
) -> tuple[PretrainModule, dict[str, Any], Tensor]:
    """What a training step is of: network and objectives, a batch, and counts."""
    config = tiny_config(family=family, **CHANGES.get(family, {}), **changes)
    batch = tiny_batch(rows=6, length=12)
    if packed_rows:
        batch = {
            **pack(batch),
            "masked_labels": batch["masked_labels"],
            "pair_labels": batch["pair_labels"][:3],
        }
    names = config.default_objectives("nsp" if "pair" in config.heads and not packed_rows else None)
    scoring = PretrainModule(
        new_model(config), names, "fp32", weights=config.loss_weights()
    ).train()
    return scoring, laid(batch, choice), torch.ones(len(names))


def ways(*choices: Choice) -> list[Any]:
    """Families, rows and layouts; all families in one layout, and BERT in each."""
    found = [
        pytest.param(family, packed_rows, choice, id=f"{family}-{packed_rows}-{choice}")
        for family in TRANSFORMERS
        for packed_rows in (False, True)
        for choice in choices
        if family != "xlnet" or (choice == "padded" and not packed_rows)
    ]
    kept = [
        way.id for way in found if way.values[0] == "bert" or way.values[1:] == (False, choices[-1])
    ]
    return few(found, "xlnet-False-padded", *kept)


@pytest.mark.parametrize(("family", "packed_rows", "choice"), ways("padded", "buckets", "packed"))
def test_a_training_step_asks_nothing(
    family: str, packed_rows: bool, choice: Choice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        layout_module, "varlen_attention", varlen_on_cpu
    )  # the kernel exists on GPUs alone
    scoring, batch, counts = step_of(family, packed_rows, choice)
    with NoQuestions():
        loss, *_ = scoring(batch, counts)
        loss.backward()
    assert loss.isfinite()


@pytest.mark.parametrize(("family", "packed_rows", "choice"), ways("padded", "packed"))
def test_a_training_step_lies_on_one_device(
    family: str, packed_rows: bool, choice: Choice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's meta device has shapes alone, takes the branches of a device that is no CPU, and
    refuses the tensors of one.
    """
    monkeypatch.setattr(
        layout_module, "varlen_attention", lambda query, key, value, *_: query + key + value
    )
    monkeypatch.setattr(
        torch, "is_autocast_enabled", lambda _: False
    )  # it does not know the meta device
    scoring, batch, counts = step_of(
        family, packed_rows, choice, hidden_dropout=0.1, attention_dropout=0.1
    )
    scoring.to("meta")
    loss, figures = scoring(
        {name: part.to("meta") for name, part in batch.items()}, counts.to("meta")
    )
    loss.backward()
    found = [loss, figures, *(p.grad for p in scoring.parameters() if p.grad is not None)]
    assert {tensor.device.type for tensor in found} == {"meta"}


def test_a_student_and_its_teacher_ask_nothing() -> None:
    student, teacher = new_model(tiny_config(family="distilbert")), new_model(tiny_config())
    batch = laid(tiny_batch(rows=6), "buckets")
    chosen, temperature = objectives(("mlm", "distillation", "cosine")), torch.tensor(2.0)
    with NoQuestions():
        outputs, taught = student(batch), teacher(batch)
        seen = {
            "teacher_logits": taught["mlm_logits"].detach(),
            "teacher_hidden": taught["hidden"].detach(),
        }
        sums: Iterable[Tensor] = (
            item.loss({**outputs, **seen, "temperature": temperature}, batch)[0] for item in chosen
        )
        torch.stack(list(sums)).sum().backward()


def test_a_classifier_with_its_global_token_asks_nothing() -> None:
    encoder = new_model(tiny_config(family="longformer", **CHANGES["longformer"])).encoder
    batch = tiny_batch(rows=6)
    with NoQuestions():
        encoder(
            batch["input_ids"], batch["attention_mask"], batch["token_type_ids"]
        ).sum().backward()


@pytest.mark.parametrize(
    "question",
    [lambda x: int(x.sum()), lambda x: x.nonzero(), lambda x: x[x > 0], lambda x: x.bincount()],
)
def test_a_question_would_be_noticed(question: Callable[[Tensor], object]) -> None:
    with NoQuestions(), pytest.raises(AssertionError, match="asks the device"):
        question(torch.arange(3))
