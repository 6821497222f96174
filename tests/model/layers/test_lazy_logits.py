"""Logits that are computed in chunks of rows: the loss, its gradients and the figures are those of
whole logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from cloze.model import hardware
from cloze.model.families.models import new_model
from cloze.model.families.registry import FAMILIES
from cloze.model.layers import cross_entropy
from cloze.model.layers.cross_entropy import LazyLogits, VocabularyHead, summed_cross_entropy
from cloze.model.train.evaluate.scoring import PretrainModule
from tests.model.layers.test_device_questions import CHANGES
from tests.slices import few
from tests.tiny_models import PIECES, tiny_batch, tiny_config

M, V, E = 97, 61, 8


def in_rows_of(rows: int, vocabulary: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of so many rows, from the first row too many for one on."""
    monkeypatch.setitem(hardware.LOGIT_CHUNK, "cpu", 4 * vocabulary * rows)
    monkeypatch.setattr(hardware, "WHOLE_CHUNKS", 1)


def factors(dtype: torch.dtype, bias: bool) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """States, embeddings, bias and labels."""
    torch.manual_seed(0)
    hidden = (2 * torch.randn(M, E)).to(dtype).requires_grad_()
    weight, added = (
        torch.randn(V, E, requires_grad=True),
        torch.randn(V, requires_grad=True) if bias else None,
    )
    labels = torch.randint(V, (M,))
    labels[::5] = -100
    return hidden, weight, added, labels


@pytest.mark.parametrize("how", ["cpu", "gpu", "compiled"])
@pytest.mark.parametrize("rows", [1, 10, 200])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loss_and_gradients_are_those_of_whole_logits(
    dtype: torch.dtype, bias: bool, rows: int, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU has columns behind the vocabulary."""
    in_rows_of(rows, V, monkeypatch)
    if how != "cpu":
        monkeypatch.setattr(cross_entropy, "filler_columns", lambda vocabulary, _: -vocabulary % 16)
        monkeypatch.setattr(cross_entropy, "_compiled_rows", lambda: cross_entropy._fused_rows)
    hidden, weight, added, labels = factors(dtype, bias)
    wanted = [tensor for tensor in (hidden, weight, added) if tensor is not None]
    logits = LazyLogits(hidden, weight, added, compiled=how == "compiled")
    total, correct = summed_cross_entropy(logits, labels)
    found = torch.autograd.grad(171.49 / 512 * total, wanted)
    exact = functional.linear(
        hidden.double(), weight.double(), None if added is None else added.double()
    )
    expected = functional.cross_entropy(exact, labels, reduction="sum")
    truth = torch.autograd.grad(171.49 / 512 * expected, wanted)
    whole = functional.linear(hidden, weight.to(dtype), None if added is None else added.to(dtype))
    plain, right = summed_cross_entropy(whole, labels)
    compared = torch.autograd.grad(171.49 / 512 * plain, wanted)
    assert int(correct) == int(right)
    assert total.dtype == torch.float32
    assert [gradient.dtype for gradient in found] == [tensor.dtype for tensor in wanted]
    assert not any(gradient.requires_grad for gradient in found)
    torch.testing.assert_close(
        total.double(), expected.double(), rtol=1e-5 if dtype == torch.float32 else 5e-3, atol=0
    )
    for ours, theirs, true in zip(found, compared, truth, strict=True):
        allowed = 1e-5 if dtype == torch.float32 else 2e-2
        error = float((ours.double() - true.double()).norm() / true.double().norm())
        assert error <= max(
            allowed / 10,
            1.5 * float((theirs.double() - true.double()).norm() / true.double().norm()),
        )
        assert error < allowed
    with torch.no_grad():
        assert summed_cross_entropy(logits, labels)[0].equal(total.detach())


def test_no_rows_are_no_loss_and_a_gradient_of_zero() -> None:
    hidden, weight, bias, labels = factors(torch.float32, True)
    for rows, asked in ((0, labels[:0]), (3, torch.full((3,), -100))):
        total, correct = summed_cross_entropy(LazyLogits(hidden[:rows], weight, bias), asked)
        assert (float(total.detach()), int(correct)) == (0.0, 0)
        assert not any(
            gradient.any() for gradient in torch.autograd.grad(total, (hidden, weight, bias))
        )  # type: ignore[arg-type]


class Largest(TorchDispatchMode):
    """Remembers how many numbers the largest tensor had that was made."""

    numbers = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, Tensor):
            self.numbers = max(self.numbers, found.numel())
        return found


def test_logits_are_never_there_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    in_rows_of(10, V, monkeypatch)
    hidden, weight, bias, labels = factors(torch.float32, True)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.append(tensor.numel()) or tensor, lambda tensor: tensor
    ):
        summed_cross_entropy(LazyLogits(hidden, weight, bias), labels)
    assert sorted(kept) == sorted([hidden.numel(), weight.numel(), V])  # their gradients
    with Largest() as largest, torch.no_grad():
        cross_entropy._linear_cross_entropy._init_fn(hidden, weight, bias, labels, True, False)
    assert V * 10 <= largest.numbers < M * V / 5


@pytest.mark.parametrize(
    ("family", "precision"),
    few(
        [
            pytest.param(family, precision, id=f"{family}-{precision}")
            for family in sorted(FAMILIES)
            for precision in ("fp32", "bf16")
        ],
        "bert-bf16",
        *(f"{family}-fp32" for family in FAMILIES),
    ),
)
def test_every_family_learns_the_same_from_chunks(
    family: str, precision: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(family=family, **CHANGES.get(family, {}))
    batch = {**tiny_batch(rows=6), "mask_id": torch.tensor(4)}
    names = config.default_objectives("nsp" if "pair" in config.heads else None)

    left: list[bool] = []

    def learnt() -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        torch.manual_seed(1)
        scoring = PretrainModule(
            new_model(config), names, precision, weights=config.loss_weights()
        ).train()
        loss, figures = scoring(batch, torch.ones(len(names)))
        loss.backward()
        _, details = scoring.eval()(batch)
        gradients = {
            name: value.grad
            for name, value in scoring.model.named_parameters()
            if value.grad is not None
        }
        left.append(any(isinstance(value, LazyLogits) for value in scoring.model(batch).values()))
        return loss.detach(), figures, details, gradients

    loss, figures, details, gradients = learnt()
    in_rows_of(3, len(PIECES), monkeypatch)
    chunks, again, finer, found = learnt()
    assert left == [False, "discriminator" not in config.heads]
    torch.testing.assert_close(chunks, loss, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(again, figures, rtol=1e-5, atol=1e-5)
    assert finer.equal(details)
    assert found.keys() == gradients.keys()
    for name, wanted in gradients.items():
        allowed = 1e-5 if precision == "fp32" else 1e-2
        assert float((found[name] - wanted).norm()) <= allowed * float(wanted.norm()) + 1e-6, name


def test_heads_leave_logits_where_nobody_else_reads_them() -> None:
    def leaving(names: tuple[str, ...], **changes: Any) -> bool:
        model = new_model(tiny_config(**changes))
        assert not any(head.lazy for head in model.modules() if isinstance(head, VocabularyHead))
        PretrainModule(model, names, "fp32")
        return any(head.lazy for head in model.modules() if isinstance(head, VocabularyHead))

    assert leaving(("mlm",))
    assert leaving(("lm",), family="gpt2")
    assert not leaving(("mlm", "rtd"), family="electra")  # it draws from them
    assert not leaving(
        ("mlm", "distillation"), family="distilbert"
    )  # they are compared with a teacher's


def test_few_logits_are_computed_whole() -> None:
    outputs = PretrainModule(new_model(tiny_config()), ("mlm",), "fp32").model(tiny_batch())
    assert isinstance(outputs["mlm_logits"], Tensor)
    assert not hardware.chunks_logits(640, 30522, "cpu")  # a BERT-mini's step of 32 x 128
    assert hardware.chunks_logits(4096, 30522, "cpu")  # where every position is predicted


@pytest.mark.parametrize("precision", few(["fp32", "bf16"], "bf16"))
def test_compiled_it_is_one_operation_that_gives_the_same(
    precision: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_rows_of(7, len(PIECES), monkeypatch)
    config, batch = tiny_config(family="gpt2"), tiny_batch(rows=6)
    found = []
    for compiled in (False, True):
        torch.manual_seed(1)
        scoring = PretrainModule(new_model(config), ("lm",), precision).train()
        counts = torch.tensor(scoring.count_targets(batch))

        def loss(scoring: PretrainModule = scoring, counts: Tensor = counts) -> Tensor:
            found: Tensor = scoring(batch, counts)[0]
            return found

        graphs: list[torch.fx.GraphModule] = []

        def look(
            graph: torch.fx.GraphModule, _: Any, graphs: list[torch.fx.GraphModule] = graphs
        ) -> Any:
            graphs.append(graph)
            return graph.forward

        if compiled:
            torch.compile(loss, backend=look, fullgraph=True)()
            assert (
                sum("linear_cross_entropy" in str(node.target) for node in graphs[0].graph.nodes)
                == 1
            )
            torch._dynamo.reset()
        value = (torch.compile(loss, backend="aot_eager", fullgraph=True) if compiled else loss)()
        value.backward()
        found.append((value.detach(), scoring.model.encoder.embeddings.word.weight.grad))
    for ours, wanted in zip(found[1], found[0], strict=True):
        assert ours is not None
        assert wanted is not None
        torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-5)
