"""Products in int8: close to fp32, the same alone as in a batch, and never a sound answer to NaN."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from cloze.core.errors import UsageError
from cloze.labs.costs import int8
from cloze.labs.costs.int8 import convert, pack, product
from cloze.labs.embed import EmbeddingPipeline
from cloze.labs.left_to_right import TiedHead
from cloze.labs.serving.classify import TextClassificationPipeline
from cloze.model.hardware import chunks_logits, logit_chunk_rows
from cloze.model.layers.cpu import Linear, linear
from cloze.model.layers.cross_entropy import (
    LazyLogits,
    enable_lazy_logits,
    iter_chunks,
    summed_cross_entropy,
)
from cloze.model.layers.heads import MaskedLMHead
from cloze.model.train.precision import PRECISIONS, place, resolve
from cloze.model.use.fill_mask import FillMaskPipeline
from cloze.model.use.scorer import SentenceScorer
from tests.tiny_models import write_checkpoint, write_classifier

CPU = torch.device("cpu")
TEXTS = ["the cat sat on the mat.", "a dog ran in the park", "paris is the capital"]


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def bound(values: Tensor, weight: Tensor) -> Tensor:
    """Half a step of each factor, times the other, over all inputs: the largest possible error."""
    step = values.abs().amax(-1, keepdim=True) / 63 / 2
    output_step = weight.abs().amax(-1) / 127 / 2
    width = weight.shape[1]
    return (
        step * weight.abs().sum(-1)
        + values.abs().sum(-1, keepdim=True) * output_step
        + width * step * output_step
        + 1e-4
    )


@settings(max_examples=40)
@given(
    st.tuples(*(st.integers(1, n) for n in (7, 5, 90, 70))),
    st.integers(0, 1000),
    st.sampled_from((1e-6, 1.0, 3e4)),
    st.booleans(),
)
def test_a_product_is_within_its_rounding(
    shape: tuple[int, int, int, int], seed: int, scale: float, biased: bool
) -> None:
    rows, length, inputs, outputs = shape
    values, weight = drawn(seed, rows, length, inputs) * scale, drawn(seed + 1, outputs, inputs)
    bias = drawn(seed + 2, outputs) if biased else None
    found = product(values, pack(weight), bias)
    exact = values.double() @ weight.double().T + (0 if bias is None else bias.double())
    assert found.shape == exact.shape
    assert ((found - exact).abs() <= bound(values, weight) * 1.01).all()


@settings(max_examples=20)
@given(st.integers(2, 33), st.integers(0, 1000))
def test_an_answer_does_not_depend_on_its_batch(rows: int, seed: int) -> None:
    values, weight = drawn(seed, rows, 24), drawn(seed + 1, 16, 24)
    values[0] *= 1000  # whose scale would be the others', too
    together = product(values, pack(weight), None)
    alone = torch.cat([product(row[None], pack(weight), None) for row in values])
    assert torch.equal(together, alone)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_stays_so(value: float) -> None:
    values = torch.ones(2, 8)
    values[0, 3] = value
    found = product(values, pack(torch.ones(4, 8)), torch.ones(4))
    assert not found[0].isfinite().any()
    assert found[1].tolist() == pytest.approx([9.0] * 4)


def test_a_row_and_an_output_of_zeros() -> None:
    weight = torch.ones(2, 8)
    weight[0] = 0
    assert product(torch.zeros(1, 8), pack(weight), None).tolist() == [[0.0, 0.0]]
    assert product(torch.ones(1, 8), pack(weight), None).tolist() == [[0.0, pytest.approx(8.0)]]


def test_a_model_is_in_int8_or_is_not() -> None:
    """Its layers are, from its loading on: no other model's, and no caller can forget it."""
    other, values = Linear(8, 4), drawn(1, 2, 8)
    head = MaskedLMHead(4, 4, 6, activation="gelu", norm=nn.LayerNorm(4))
    network: Any = nn.Sequential(Linear(8, 4), head)
    exact = network[0](values)
    place(network, CPU, "int8")
    assert torch.equal(
        network[0](values), product(values, pack(network[0].weight), network[0].bias)
    )
    assert not torch.equal(network[0](values), exact)
    assert torch.equal(other(values), linear(values, other.weight, other.bias))
    assert network[0](torch.ones(0, 8)).shape == (0, 4)  # a batch without rows
    table = drawn(2, 6, 4)
    assert torch.equal(network[1].project(exact, table), product(exact, pack(table), None))
    again = drawn(3, 6, 4)  # of another table, such as a copy
    assert torch.equal(network[1].project(exact, again), product(exact, pack(again), None))
    assert len(network.state_dict()) == len(copy.deepcopy(network).state_dict())


def test_a_weight_is_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = list[Tensor]()
    monkeypatch.setattr(int8, "pack", lambda weight: [packed.append(weight), pack(weight)][1])
    layer = place(nn.Sequential(Linear(8, 4)), CPU, "int8")
    for _ in range(3):
        layer(torch.ones(2, 8))
    assert len(packed) == 1


@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_another_device_is_refused_before_any_weight_is_read(kind: str) -> None:
    assert "int8" in PRECISIONS
    assert resolve("int8", CPU) == "int8"
    with pytest.raises(UsageError, match=rf"int8.* is for CPUs.*{kind}"):
        resolve("int8", torch.device(kind))
    with pytest.raises(UsageError, match="is for CPUs"):
        convert(nn.Module(), torch.device(kind))


def test_every_pipeline_computes_in_it(tmp_path: Path) -> None:
    """Close to fp32 and not equal to it: else the precision was silently another one."""
    pretrained = write_checkpoint(tmp_path / "checkpoint", tmp_path / "pieces")
    classifier = write_classifier(tmp_path / "classifier", tmp_path / "pieces2")
    embeddings, fills, scores, labels = [], [], [], []
    for precision in ("fp32", "int8"):
        embedder = EmbeddingPipeline(pretrained, precision=precision)  # type: ignore[arg-type]
        embeddings.append(torch.from_numpy(embedder.embed(TEXTS)))
        filler = FillMaskPipeline(pretrained, precision=precision)  # type: ignore[arg-type]
        found = filler.fill("the [MASK] sat", top_k=40)
        fills.append({one["token"]: one["score"] for one in found[0]})
        scorer = SentenceScorer(pretrained, precision=precision)  # type: ignore[arg-type]
        scores.append(torch.tensor([one.score() for one in scorer.scored(TEXTS)]))
        classify = TextClassificationPipeline(classifier, precision=precision)  # type: ignore[arg-type]
        labels.append(torch.from_numpy(classify.outputs(classify.encode_texts(TEXTS, None))))
    for exact, rounded in (embeddings, scores, labels):
        assert not torch.equal(exact, rounded)
        assert (exact - rounded).abs().max() < 0.1 * exact.abs().max()
    assert fills[0] != fills[1]
    assert max(abs(fills[0][token] - fills[1].get(token, 0)) for token in fills[0]) < 0.1


@pytest.mark.parametrize("kind", [MaskedLMHead, TiedHead])
def test_large_logits_are_computed_in_chunks(kind: Any) -> None:
    """As in fp32: no more rows at once than a chunk has, and the loss of whole logits."""
    vocabulary = 30_000
    rows = 3 * logit_chunk_rows(vocabulary, "cpu") + 1
    assert chunks_logits(rows, vocabulary, "cpu")
    torch.manual_seed(0)
    options = {"activation": "gelu", "norm": nn.LayerNorm(8)}
    head = nn.Sequential(kind(8, 8, vocabulary, **options) if kind is MaskedLMHead else kind())
    table, states = drawn(1, vocabulary, 8), drawn(2, rows, 8)
    labels = torch.arange(rows) * 7 % vocabulary
    convert(head, CPU)
    with torch.no_grad():
        whole = head[0](states, table)
        enable_lazy_logits(head)
        found = head[0](states, table)
        assert isinstance(found, LazyLogits)
        parts = [chunk for _, chunk in iter_chunks(found)]
        assert max(map(len, parts)) < rows
        torch.testing.assert_close(torch.cat(parts), whole)
        for own, expected in zip(
            summed_cross_entropy(found, labels), summed_cross_entropy(whole, labels), strict=True
        ):
            torch.testing.assert_close(own, expected)
