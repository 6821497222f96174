"""Attribution of a prediction to tokens or words, by integrated gradients.

The embeddings of the tokens move on a straight line from a baseline, where every token is padding
and special tokens stay, to the text. A token's score is its part of the integral of the gradients
along the way: all scores together are the difference of the logit at both ends (Sundararajan et
al., "Axiomatic Attribution for Deep Networks", 2017, proposition 1). The integral is computed by
Gauss-Legendre quadrature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cloze.core.errors import UsageError
from cloze.model.data.batch import move
from cloze.model.layers.batch import Batch
from cloze.model.tasks.encode import TextSamples, WordSamples
from cloze.model.tasks.formats.choices import Choices
from cloze.model.tasks.formats.columns import TaggedWords
from cloze.model.tasks.formats.squad import SquadExamples
from cloze.model.tasks.formats.texts import TextExamples
from cloze.model.tasks.kinds.choice import ChoiceSamples
from cloze.model.tasks.span_windows import BOUNDS, Windows
from cloze.model.tasks.task import Split
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from cloze.model.tasks.predict import FinetunedModel

STEPS = 64  # points of the quadrature
ROWS = 8  # points per forward and backward pass

Scores = npt.NDArray[np.float64]
Token = dict[str, Any]  # {"field", "text", "start", "end": characters, "score"}
Explanation = dict[str, Any]


class Attribution(NamedTuple):
    """Scores of positions, float64 [L], and the logit of the text and of the baseline."""

    scores: Scores
    logit: float
    baseline: float

    def explanation(self, label: str | None, tokens: Sequence[Token]) -> Explanation:
        return {
            "label": label,
            "logit": self.logit,
            "baseline": self.baseline,
            "tokens": tokens,
        }


class _Path:
    """Forward hook of the word embeddings: moves the rows of a batch along the line."""

    def __init__(self, pieces: Tokenizer) -> None:
        self._pad = pieces.special.pad
        self._special = torch.tensor(sorted({*pieces.special.ids} - {pieces.special.unk}))
        self.points = torch.zeros(0)  # [rows], from 0 (baseline) to 1 (text)
        self.distance = self.embedded = torch.zeros(0)

    def __call__(self, module: nn.Embedding, arguments: Any, output: Tensor) -> Tensor:
        special = torch.isin(arguments[0], self._special.to(output.device))
        baseline = module.weight[self._pad].detach().where(~special[..., None], output.detach())
        self.distance = output.detach() - baseline
        along = baseline + self.points.to(output)[:, None, None] * self.distance
        self.embedded = along.requires_grad_(torch.is_grad_enabled())
        return self.embedded


def check_explainable(checkpoint: str, network: nn.Module, metadata: Mapping[str, Any]) -> None:
    """Raise UsageError if a network has no gradient by the embeddings of its tokens."""
    encoder: Any = network.get_submodule("encoder")
    obstacles = {
        "reads frozen features": bool(metadata.get("frozen")),
        "has a decoder": hasattr(encoder, "decoder"),
        "reads characters": not hasattr(encoder, "embeddings")
        or not hasattr(encoder.embeddings, "word"),
    }
    obstacle = next((name for name, applies in obstacles.items() if applies), None)
    if obstacle:
        raise UsageError(
            f"explain needs an encoder that was trained on tokens, and {checkpoint} {obstacle}; "
            f"ask another checkpoint, or without an explanation"
        )


def attribute(
    network: nn.Module,
    pieces: Tokenizer,
    device: torch.device,
    batch_of: Callable[[int], Batch],
    target: Callable[[Any], Tensor],
) -> Attribution:
    """Attribute a logit to the positions of one sequence.

    Args:
        batch_of: function that returns a batch of n equal rows of the sequence.
        target: function from the network's outputs for such a batch to the logit, [n].
    """
    path = _Path(pieces)

    def logits(points: Tensor) -> Tensor:
        path.points = points
        return target(network(move(batch_of(len(points)), device))).float()

    encoder: Any = network.get_submodule("encoder")
    handle = encoder.embeddings.word.register_forward_hook(path)
    try:
        network.eval()
        with torch.no_grad():
            baseline, logit = logits(torch.tensor([0.0, 1.0])).tolist()
        nodes, weights = np.polynomial.legendre.leggauss(STEPS)
        parts = []
        for begin in range(0, STEPS, ROWS):
            part = slice(begin, begin + ROWS)
            with torch.enable_grad():
                total = logits(torch.from_numpy((nodes[part] + 1) / 2)).sum()
                (gradient,) = torch.autograd.grad(total, path.embedded)
            change = (gradient * path.distance).sum(dim=-1).double().cpu().numpy()
            parts.append((weights[part] / 2) @ change)
    finally:
        handle.remove()
    return Attribution(np.sum(parts, axis=0), logit, baseline)


def context_shares(
    tokens: Iterable[Token], field: str, start: int, end: int
) -> dict[str, float | None]:
    """Return which share of the absolute scores lies where; all are None if every score is 0.

    Args:
        field, start, end: characters of the word, tag or answer that is explained.

    Returns:
        `left`, `own` and `right` of these characters in the same field; `other`: other fields.
    """
    sums = {"left": 0.0, "own": 0.0, "right": 0.0, "other": 0.0}
    for token in tokens:
        if token["field"] != field:
            side = "other"
        elif token["end"] <= start:
            side = "left"
        else:
            side = "right" if token["start"] >= end else "own"
        sums[side] += abs(token["score"])
    total = sum(sums.values())
    return {side: own / total if total else None for side, own in sums.items()}


def explain(
    model: FinetunedModel, split: Split, number: int, choice: int | None = None
) -> Explanation:
    """Attribute the logit of the most probable label, a score, or the chosen ending to tokens.

    Args:
        model: model of a classification, regression or multiple choice.
        split: encoded examples.
        number: number of the example.
        choice: of a multiple choice: number of the chosen ending.

    Returns:
        `label` (None: a regression; of a choice the ending), `logit` of the text, `baseline` (logit
        without the text), and `tokens`: dicts of `field` (text, pair or choice), `text`, `start`
        and `end` (characters), `score`.
    """
    samples, examples = split.samples, split.examples
    if isinstance(examples, Choices):
        assert isinstance(samples, ChoiceSamples)
        assert choice is not None
        # The logit of an ending depends on its own sequence alone.
        row, rows = int(samples.counts[:number].sum()) + choice, samples.sequences
        contents = {"text": examples.contexts[number], "choice": examples.endings[number][choice]}
        names: Sequence[str] | None = None
    else:
        assert isinstance(samples, TextSamples)
        assert isinstance(examples, TextExamples)
        row, rows, contents = number, samples, {"text": examples.texts[number]}
        if examples.text_pairs is not None:
            contents["pair"] = examples.text_pairs[number]
        names = getattr(examples, "label_names", None)
    with torch.no_grad():
        index = int(_outputs(model, rows, row)[0].argmax())
    found = _attribute(model, rows, row, lambda outputs: outputs[:, index])
    # An ending that is too long keeps its end, see `Choice.encode`.
    tail = getattr(model.task.options, "truncate", None) == "context"
    frame, second = model.tokenizer, int(rows.second[row])
    separator = 1 if len(contents) == 1 else len(frame.pair_frame.separator)
    ranges = [(len(frame.special.begins), second - separator), (second, len(found.scores) - 1)]
    tokens = []
    for (field, content), (begin, end) in zip(contents.items(), ranges, strict=False):
        ((_, spans),) = frame.encode_with_offsets([content])
        kept = spans[-(end - begin) :] if tail and field == "choice" else spans
        tokens += _tokens(field, content, kept, found.scores[begin:end])
    label = contents.get("choice") if names is None else names[index]
    return found.explanation(label, tokens)


def explain_tag(model: FinetunedModel, split: Split, number: int, word: int) -> Explanation:
    """Attribute the logit of a word's most probable tag to the words of its window.

    Args:
        model: model of a tagging task.
        number, word: numbers of the sentence and of the word in it.

    Returns:
        As `explain`; `label` is the tag. `start` and `end` are numbers of words in `tokens`.
    """
    samples, examples = split.samples, split.examples
    assert isinstance(samples, WordSamples)
    assert isinstance(examples, TaggedWords)
    windows = [i for i, own in enumerate(samples.windows) if own.sentence == number]
    # The windows of a sentence predict each of its words once, in order.
    sizes = np.concatenate([samples.sizes[i] for i in windows])
    row = next(i for i in windows if word < samples.windows[i].own[1])
    window = samples.windows[row]
    position = int(samples.first[row][word - window.own[0]])
    with torch.no_grad():
        index = int(_outputs(model, samples, row)[0, position].argmax())
    found = _attribute(model, samples, row, lambda outputs: outputs[:, position, index])
    first, last = window.words
    begins = len(model.tokenizer.special.begins)
    edges = np.concatenate([[0], np.cumsum(sizes[first:last])]) + begins
    words = examples.words[number]
    tokens = [
        {
            "field": "text", "text": words[i], "start": i, "end": i + 1,
            "score": float(found.scores[edges[i - first] : edges[i - first + 1]].sum()),
        }
        for i in range(first, last)
    ]  # fmt: skip
    return found.explanation(str(model.metadata["labels"][index]), tokens)


def explain_answer(
    model: FinetunedModel, split: Split, number: int, start: int, end: int
) -> Explanation:
    """Attribute the sum of an answer's start and end logit to question and passage.

    Args:
        model: model of a question-answering task.
        number: number of the question.
        start, end: characters of the answer in its passage.

    Returns:
        As `explain`; `label` is the answer, `field` is question or passage.
    """
    samples, examples = split.samples, split.examples
    assert isinstance(samples, Windows)
    assert isinstance(examples, SquadExamples)
    passage = examples.passage_of[number]
    spans, text = samples.offsets[passage], examples.passages[passage]
    first = int(np.searchsorted(spans[:, 1], start, side="right"))
    last = int(np.searchsorted(spans[:, 0], end, side="left")) - 1
    # A start counts in one window of its question, which has the whole answer.
    for row in np.flatnonzero(samples.question == number).tolist():
        opens, closes, counts_from, counts_to = samples.targets[BOUNDS][row].tolist()
        shift = int(opens - samples.begin[row])
        if counts_from <= first + shift < counts_to:
            break
    found = _attribute(
        model, samples, row,
        lambda outputs: outputs[:, first + shift, 0] + outputs[:, last + shift, 1],
    )  # fmt: skip
    question = examples.questions[number]
    ((_, asked),) = model.tokenizer.encode_with_offsets([question])
    head = slice(
        len(model.tokenizer.special.begins), opens - len(model.tokenizer.pair_frame.separator)
    )
    shown = spans[opens - shift : closes - shift]
    return found.explanation(
        text[start:end],
        _tokens("question", question, asked, found.scores[head])
        + _tokens("passage", text, shown, found.scores[opens:closes]),
    )


def _outputs(model: FinetunedModel, rows: TextSamples, row: int) -> Tensor:
    """Return the network's outputs for one sequence, [1, ...]."""
    model.network.eval()
    outputs: Tensor = model.network(move(rows.batch([row], "rows"), model.device))
    return outputs


def _attribute(
    model: FinetunedModel, rows: TextSamples, row: int, target: Callable[[Tensor], Tensor]
) -> Attribution:
    """Attribute a logit of a task's network to the positions of sequence `row`."""
    return attribute(
        model.network, model.tokenizer, model.device,
        lambda count: rows.batch([row] * count, "rows"), target,
    )  # fmt: skip


def _tokens(field: str, content: str, spans: npt.NDArray[Any], scores: Scores) -> list[Token]:
    """Return the tokens of a field with their scores, in order; truncated ones are left out.

    Args:
        spans: int64 [tokens, 2], characters of the tokens.
        scores: float64 [at most tokens].
    """
    return [
        {
            "field": field, "text": content[start:stop], "start": start, "end": stop,
            "score": float(score),
        }
        for (start, stop), score in zip(spans.tolist(), scores, strict=False)
    ]  # fmt: skip
