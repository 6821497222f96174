"""Cross-entropy over a vocabulary, with logits that are computed in chunks.

Logits are the largest tensor of a step if every position is predicted. A head with `lazy` returns
the factors of its last product instead (`LazyLogits`); the loss then computes chunks of rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from cloze.model.hardware import chunks_logits, logit_chunk_rows
from cloze.model.layers.cpu import autocast_input, linear

# torch's compiler chose another way to sum rows of a vocabulary, and asks to be told of it
warnings.filterwarnings("ignore", r"\s*Online softmax is disabled on the fly")


class LazyLogits(NamedTuple):
    """Logits [..., V] that are not computed yet.

    Attributes:
        hidden: float [..., E], in the dtype of the matrix product.
        weight: float [V, E], of any dtype.
        bias: float [V], of any dtype; None for no bias.
        compiled: the loss compiles its elementwise part.
        loss: computes loss and count in place of `summed_cross_entropy` where there are gradients.
        product: computes logits of states without gradients, in place of weight and bias.
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None = None
    compiled: bool = False
    loss: Callable[[LazyLogits, Tensor], tuple[Tensor, Tensor]] | None = None
    product: Callable[[Tensor], Tensor] | None = None

    def whole(self) -> Tensor:
        """Compute the logits in the dtype of `hidden`."""
        if self.product is not None:
            return self.product(self.hidden)
        bias = None if self.bias is None else self.bias.to(self.hidden.dtype)
        return linear(self.hidden, self.weight.to(self.hidden.dtype), bias)


Logits = Tensor | LazyLogits


def flat(logits: Logits) -> Logits:
    """Reshape [B, L, V] to [B * L, V]."""
    return (
        logits.flatten(0, 1)
        if isinstance(logits, Tensor)
        else logits._replace(hidden=logits.hidden.flatten(0, 1))
    )


def iter_chunks(logits: Logits) -> Iterator[tuple[slice, Tensor]]:
    """Iterate over chunks of logits [M, V], as (rows, logits); yields at least one chunk."""
    if isinstance(logits, Tensor):
        yield slice(0, len(logits)), logits
        return
    step = logit_chunk_rows(len(logits.weight), logits.weight.device.type)
    for start in range(0, max(1, len(logits.hidden)), step):
        selected = slice(start, start + step)
        yield selected, logits._replace(hidden=logits.hidden[selected]).whole()


class VocabularyHead(nn.Module):
    """Head that ends in a product with the word embeddings.

    Attributes:
        lazy: return large logits as `LazyLogits`.
        compiled: the loss of these compiles its elementwise part.
        loss_of_table: loss of these, with the table as its first argument; None: the usual one.
    """

    lazy: bool = False
    compiled: bool = False
    loss_of_table: Callable[[Tensor, LazyLogits, Tensor], tuple[Tensor, Tensor]] | None = None

    def project(self, hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
        """Return the logits of states [..., E] for embeddings [V, E]: float [..., V], or lazy."""
        if not self.lazy or not chunks_logits(
            hidden.shape[:-1].numel(), len(weight), hidden.device.type
        ):
            return linear(hidden, weight, bias)
        # Autocast casts torch's own products, not the inputs of a custom operation.
        hidden = autocast_input(hidden)
        # Views: ZeRO stage 3 empties a parameter after its module ran; a view of the gathered
        # weight stays valid.
        return LazyLogits(
            hidden,
            weight.view_as(weight),
            None if bias is None else bias.view_as(bias),
            self.compiled,
            None if self.loss_of_table is None else partial(self.loss_of_table, weight),
        )


def enable_lazy_logits(model: nn.Module) -> None:
    """Make a model's heads return large logits lazily, unless the model reads its own logits."""
    if not getattr(model, "reads_logits", False):
        for module in model.modules():
            if isinstance(module, VocabularyHead):
                module.lazy = True


# Cross-entropy: small models spend more time here than in their layers.

IGNORED = -100
TILE = 64  # columns
ROWS = 16  # rows of logits at once on a CPU: 30,522 fp32 numbers each fit the second-level cache


def summed_cross_entropy(logits: Logits, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the summed loss and the number of correct predictions.

    Args:
        logits: float [M, V]; everything is computed in fp32.
        labels: int64 [M], -100 for ignored rows.

    Returns:
        Loss in nats, fp32 scalar, differentiable; number of labels that
        are the prediction, the first column of the highest logit, int64.
    """
    if isinstance(logits, LazyLogits) and logits.product is not None:
        parts = [summed_cross_entropy(chunk, labels[rows]) for rows, chunk in iter_chunks(logits)]
        losses, counts = zip(*parts, strict=True)
        return torch.stack(losses).sum(), torch.stack(counts).sum()
    if isinstance(logits, LazyLogits):
        needs_gradient = torch.is_grad_enabled() and (
            logits.hidden.requires_grad or logits.weight.requires_grad
        )
        if needs_gradient and logits.loss is not None and not torch.compiler.is_compiling():
            return logits.loss(logits, labels)
        outputs = torch.ops.cloze.linear_cross_entropy(
            logits.hidden, logits.weight, logits.bias, labels, needs_gradient, logits.compiled
        )
        return outputs[0], outputs[1]
    if logits.device.type == "cpu" and not torch.compiler.is_compiling():
        total, correct = _InRows.apply(logits, labels)  # type: ignore[no-untyped-call]
        return total, correct
    total = cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum")
    return total, (logits.detach().argmax(dim=-1) == labels).sum()


def _rows(
    logits: Tensor, labels: Tensor, gradient: Tensor | None, at_once: int
) -> tuple[Tensor, Tensor]:
    """Compute loss, count and gradient in groups of rows that fit the cache.

    Args:
        gradient: output for the loss's gradient, [M, V]; may be `logits`.
    """
    # -100 is no column: ignored rows read the first one, and `real` takes them out.
    real, targets = labels != IGNORED, labels.clamp(min=0)[:, None]
    losses, correct = [], []
    for start in range(0, len(logits), at_once):
        selected = slice(start, start + at_once)
        # A copy, even of fp32 logits: the next lines change it in place.
        scores = logits[selected].to(torch.float32, copy=True)
        # NumPy finds the place of a maximum in the time of torch's `amax`; torch's own takes 15
        # times as long. A label that only ties with a prediction is no prediction.
        predicted = torch.from_numpy(scores.numpy().argmax(axis=1))[:, None]
        highest = scores.gather(1, predicted)
        picked = scores.gather(1, targets[selected])
        normalizer = scores.sub_(highest).exp_().sum(dim=1, keepdim=True)
        losses.append((highest + normalizer.log() - picked).squeeze(1))
        correct.append((predicted == targets[selected]).squeeze(1))
        if gradient is not None:
            # The gradient is softmax - one-hot. It reuses the numerators, which are in the cache.
            scores.mul_(real[selected, None] / normalizer)
            scores.scatter_add_(1, targets[selected], -real[selected, None].float())
            gradient[selected] = scores
    if not losses:
        return logits.new_zeros((), dtype=torch.float32), labels.new_zeros(())
    return torch.where(real, torch.cat(losses), 0.0).sum(), (torch.cat(correct) & real).sum()


def _fused_rows(
    logits: Tensor, labels: Tensor, vocabulary: int, learns: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Compute loss, count and gradient of rows in expressions that a compiler fuses.

    Args:
        logits: [M, at least V]; columns behind the vocabulary are filler without gradient.

    Returns:
        Loss, count, and gradient in the shape and dtype of `logits`; None unless `learns`.
    """
    columns = torch.arange(logits.shape[1], device=logits.device)
    # exp(-inf) is 0: filler takes no share of the probability, and no gradient.
    scores = torch.where(columns < vocabulary, logits.float(), -torch.inf)
    real, targets = labels != IGNORED, labels.clamp(min=0)[:, None]
    highest = scores.amax(dim=1, keepdim=True)
    normalizer = (scores - highest).exp().sum(dim=1, keepdim=True).log() + highest
    picked = scores.gather(1, targets)
    loss = torch.where(real, (normalizer - picked).squeeze(1), 0.0).sum()
    correct = (scores.argmax(dim=1) == labels).sum()  # no ignored row has such a column
    if not learns:
        return loss, correct, None
    gradient = ((scores - normalizer).exp() - (columns == targets).float()) * real[:, None]
    return loss, correct, gradient.to(logits.dtype)


@cache
def _compiled_rows() -> Callable[..., tuple[Tensor, Tensor, Tensor | None]]:
    return torch.compile(_fused_rows, dynamic=True)


class _InRows(torch.autograd.Function):
    """Loss over groups of rows: fp32 logits and log-probabilities are never whole in memory."""

    @staticmethod
    def forward(context, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
        # Known together with the loss, so that the logits need not be kept for the backward pass.
        gradient = torch.empty_like(logits) if context.needs_input_grad[0] else None
        total, correct = _rows(logits, labels, gradient, ROWS)
        context.save_for_backward(gradient)
        context.mark_non_differentiable(correct)
        return total, correct

    @staticmethod
    def backward(context, upstream: Tensor, _: Tensor | None):  # type: ignore[no-untyped-def]
        (gradient,) = context.saved_tensors
        # In place; autograd rejects a second backward pass. The factor stays in fp32: bf16 rounding
        # would scale the whole gradient by up to 0.4 % relative to other losses.
        return gradient.mul_(upstream), None


def in_chunks(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    learns: bool,
    compiled: bool,
    padded: tuple[Tensor, Callable[[Tensor, Tensor, Tensor], None]] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return loss and count for hidden [M, E] · weight [V, E] + bias [V], and gradients.

    If `learns`, the gradients of hidden, weight and bias follow, the latter two in fp32; else they
    are empty. On a GPU the products have a multiple of `TILE` columns: with BERT's 30,522 they take
    three times as long (H200).

    Args:
        padded: weight in the dtype of `hidden` with columns up to a tile, and what adds a chunk's
            gradient (sum, logits, states); None: they are made here.
    """
    at_once, on_cpu = logit_chunk_rows(len(weight), hidden.device.type), hidden.device.type == "cpu"
    cast_bias = None if bias is None else bias.to(hidden.dtype)
    vocabulary, filler = len(weight), filler_columns(len(weight), hidden.device.type)
    whole = weight.to(hidden.dtype) if padded is None else padded[0]
    if filler and padded is None:
        whole = pad(whole, (0, 0, 0, filler))
    if filler and cast_bias is not None:
        cast_bias = pad(cast_bias, (0, filler))
    # One buffer for the logits of all chunks; without a compiler their gradient overwrites them.
    workspace = hidden.new_empty(min(at_once, len(hidden)), vocabulary + filler)
    total, correct = hidden.new_zeros((), dtype=torch.float32), labels.new_zeros(())
    hidden_gradient, weight_gradient, bias_gradient = _no_gradients(
        hidden, weight if padded is None else padded[0], bias, learns
    )
    with torch.autocast(hidden.device.type, enabled=False):
        for start in range(0, len(hidden), at_once):
            states = hidden[start : start + at_once]
            logits = workspace[: len(states)]
            if cast_bias is None:
                torch.mm(states, whole.t(), out=logits)
            else:
                torch.addmm(cast_bias, states, whole.t(), out=logits)
            chunk_labels = labels[start : start + at_once]
            if compiled:
                loss, chunk_correct, gradient = _compiled_rows()(
                    logits, chunk_labels, vocabulary, learns
                )
                logits = logits if gradient is None else gradient
            else:
                scores = logits[:, :vocabulary]
                loss, chunk_correct = _rows(
                    scores, chunk_labels, scores if learns else None, ROWS if on_cpu else at_once
                )
                if learns and filler:
                    logits[:, vocabulary:] = 0.0
            total += loss
            correct += chunk_correct
            if not learns:
                continue
            torch.mm(logits, whole, out=hidden_gradient[start : start + at_once])
            if padded is not None:
                padded[1](weight_gradient, logits, states)
            # A half-precision product rounds once a chunk; the chunks are added in fp32.
            elif logits.dtype == torch.float32:
                weight_gradient.addmm_(logits[:, :vocabulary].t(), states)
            else:
                weight_gradient += (logits.t() @ states)[:vocabulary]
            if bias is not None:
                bias_gradient += logits.sum(dim=0, dtype=torch.float32)[:vocabulary]
    return total, correct, hidden_gradient, weight_gradient, bias_gradient


def filler_columns(vocabulary: int, device: str) -> int:
    """Return the number of columns that fill the last tile."""
    return 0 if device == "cpu" else -vocabulary % TILE


def _no_gradients(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, learns: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return zero gradients, empty unless `learns`."""
    if not learns:
        return hidden.new_empty(0), weight.new_empty(0), weight.new_empty(0)
    bias_gradient = weight.new_zeros(0 if bias is None else len(bias), dtype=torch.float32)
    return (
        torch.empty_like(hidden),
        weight.new_zeros(weight.shape, dtype=torch.float32),
        bias_gradient,
    )


# Custom operation, opaque to torch.compile, which would move the gradient into the backward pass
# and keep all chunks' logits until then.
_linear_cross_entropy = torch.library.custom_op(
    "cloze::linear_cross_entropy",
    in_chunks,
    mutates_args=(),
    schema=(
        "(Tensor hidden, Tensor weight, Tensor? bias, Tensor labels, bool learns, bool compiled) "
        "-> (Tensor, Tensor, Tensor, Tensor, Tensor)"
    ),
)
_linear_cross_entropy.register_fake(
    lambda hidden, weight, bias, labels, learns, _: (
        hidden.new_zeros((), dtype=torch.float32),
        labels.new_zeros(()),
        *_no_gradients(hidden, weight, bias, learns),
    )
)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, weight, bias, _, _, _ = inputs
    ctx.save_for_backward(*output[2:])
    ctx.dtypes = weight.dtype, None if bias is None else bias.dtype
    # Else autograd would make zeros as large as the weights for outputs that nobody uses.
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, upstream: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    # The saved gradients are outputs, which have their own graph.
    hidden_gradient, weight_gradient, bias_gradient = (
        gradient.detach() for gradient in ctx.saved_tensors
    )
    weight_dtype, bias_dtype = ctx.dtypes
    return (
        hidden_gradient.mul_(upstream),
        weight_gradient.mul_(upstream).to(weight_dtype),
        None if bias_dtype is None else bias_gradient.mul_(upstream).to(bias_dtype),
        None,
        None,
        None,
    )


_linear_cross_entropy.register_autograd(_differentiate, setup_context=_keep)
