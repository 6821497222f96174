"""Attribution of a prediction to tokens, by integrated gradients.

The embeddings of the tokens move on a straight line from a baseline, where every token is padding
and special tokens stay, to the text. A token's score is its part of the integral of the gradients
along the way: all scores together are the difference of the logit at both ends (Sundararajan et
al., "Axiomatic Attribution for Deep Networks", 2017, proposition 1). The integral is computed by
Gauss-Legendre quadrature.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cloze.model.data.batch import move
from cloze.model.tasks.encode import TextSamples
from cloze.model.tasks.formats.texts import TextExamples
from cloze.model.tasks.task import Split
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from cloze.model.tasks.predict import FinetunedModel

STEPS = 64  # points of the quadrature
ROWS = 8  # points per forward and backward pass


class _Path:
    """Forward hook of the word embeddings: moves the rows of a batch along the line."""

    def __init__(self, pad: int, special: Tensor) -> None:
        self._pad, self._special = pad, special
        self.points = torch.zeros(0)  # [rows], from 0 (baseline) to 1 (text)
        self.distance = self.embedded = torch.zeros(0)

    def __call__(self, module: nn.Embedding, arguments: Any, output: Tensor) -> Tensor:
        baseline = module.weight[self._pad].detach().where(~self._special[:, None], output.detach())
        self.distance = output.detach() - baseline
        along = baseline + self.points.to(output)[:, None, None] * self.distance
        self.embedded = along.requires_grad_(torch.is_grad_enabled())
        return self.embedded


def explain(model: FinetunedModel, split: Split, number: int) -> dict[str, Any]:
    """Attribute the logit of the most probable label, or the score of a regression, to tokens.

    Args:
        model: model of a classification or regression.
        split: encoded examples.
        number: number of the example.

    Returns:
        `label` (None: a regression), `logit` of the text, `baseline` (logit without the text), and
        `tokens`: dicts of `field` (text or pair), `text`, `start` and `end` (characters), `score`.
    """
    samples, examples = split.samples, split.examples
    assert isinstance(samples, TextSamples)
    assert isinstance(examples, TextExamples)
    network, device, pieces = model.network, model.device, model.tokenizer
    ids = torch.from_numpy(samples.sequences[number].astype(np.int64))
    special = torch.isin(ids, torch.tensor(sorted({*pieces.special.ids} - {pieces.special.unk})))
    path = _Path(pieces.special.pad, special.to(device))

    def logits(points: Tensor) -> Tensor:
        batch = move(samples.batch([number] * len(points), "rows"), device)
        path.points = points
        outputs: Tensor = network(batch)
        return outputs.float()

    encoder: Any = network.get_submodule("encoder")
    handle = encoder.embeddings.word.register_forward_hook(path)
    try:
        network.eval()
        with torch.no_grad():
            ends = logits(torch.tensor([0.0, 1.0]))
        label = int(ends[1].argmax())
        nodes, weights = np.polynomial.legendre.leggauss(STEPS)
        scores = torch.zeros(len(ids), dtype=torch.float64)
        for begin in range(0, STEPS, ROWS):
            part = slice(begin, begin + ROWS)
            with torch.enable_grad():
                total = logits(torch.from_numpy((nodes[part] + 1) / 2))[:, label].sum()
                (gradient,) = torch.autograd.grad(total, path.embedded)
            change = (gradient * path.distance).sum(dim=-1).double().cpu()
            scores += (torch.from_numpy(weights[part] / 2)[:, None] * change).sum(dim=0)
    finally:
        handle.remove()
    names: Sequence[str] | None = getattr(examples, "label_names", None)
    pair = None if examples.text_pairs is None else examples.text_pairs[number]
    return {
        "label": None if names is None else names[label],
        "logit": float(ends[1, label]),
        "baseline": float(ends[0, label]),
        "tokens": _tokens(
            pieces, examples.texts[number], pair, int(samples.second[number]), scores.numpy()
        ),
    }


def _tokens(
    pieces: Tokenizer, text: str, pair: str | None, second: int, scores: npt.NDArray[np.float64]
) -> list[dict[str, Any]]:
    """Return the tokens of the text and its pair with their scores, in order.

    Args:
        second: position of the pair's first token.
        scores: float64 [L], by position in the sequence.
    """
    separator = 1 if pair is None else len(pieces.pair_frame.separator)
    parts = [("text", text, 1, second - separator)]
    if pair is not None:
        parts.append(("pair", pair, second, len(scores) - 1))
    tokens = []
    for field, content, begin, end in parts:
        ((_, spans),) = pieces.encode_with_offsets([content])
        for position, (start, stop) in zip(range(begin, end), spans.tolist(), strict=False):
            token = {"field": field, "text": content[start:stop], "start": start, "end": stop}
            tokens.append({**token, "score": float(scores[position])})
    return tokens
