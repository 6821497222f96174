"""Attribution of a prediction to tokens or words, by integrated gradients.

The embeddings of the tokens move on a straight line from a baseline, where every token is padding
and special tokens stay, to the text. A token's score is its part of the integral of the gradients
along the way: all scores together are the difference of the logit at both ends (Sundararajan et
al., "Axiomatic Attribution for Deep Networks", 2017, proposition 1). The integral is computed by
Gauss-Legendre quadrature.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cloze.core.errors import UsageError
from cloze.model.data.batch import move
from cloze.model.layers.batch import Batch
from cloze.model.tasks.encode import TextSamples, WordSamples
from cloze.model.tasks.formats.choices import Choices
from cloze.model.tasks.formats.squad import SquadExamples
from cloze.model.tasks.span_windows import BOUNDS, Windows
from cloze.model.tasks.task import Split
from cloze.model.use.verb import Verb
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from cloze.model.tasks.predict import FinetunedModel

STEPS = 64  # points of the quadrature
ROWS = 8  # points per forward and backward pass

T = TypeVar("T")
Explanation = dict[str, Any]  # see `explanation`
Span = Sequence[int]  # start and end, characters


class Attribution(NamedTuple):
    """Scores of positions, float64 [L], and the logit of the text and of the baseline."""

    scores: npt.NDArray[np.float64]
    logit: float
    baseline: float


class Part(NamedTuple):
    """Text of a field in a sequence, the characters of its tokens, and the tokens' scores."""

    field: str
    content: str
    spans: Iterable[Sequence[int]]  # at least as many as scores: the last ones may be cut off
    scores: Iterable[float]


class Explains(Verb[T]):
    """Verb whose answers have explanations, by its option or where `cloze serve` is asked for one.

    Attributes:
        always: `answer` adds them.
    """

    def __init__(self, checkpoint: str, model: FinetunedModel, always: bool) -> None:
        self.checkpoint, self.model, self.always = checkpoint, model, always
        if always:
            self.check_explainable()

    def check_explainable(self) -> None:
        """Raise UsageError if the network has no gradient by the embeddings of its tokens."""
        check_explainable(self.checkpoint, self.model.network, self.model.metadata)

    def answer(self, encoded: Any) -> list[dict[str, Any]]:
        answers = self.answers(encoded)
        if self.always:
            self.explain(encoded, answers)
        return answers

    @abc.abstractmethod
    def answers(self, encoded: Any) -> list[dict[str, Any]]:
        """Return what `answer` returns, without explanations."""

    @abc.abstractmethod
    def explain(self, encoded: Any, answers: Sequence[dict[str, Any]]) -> None:
        """Add the explanations of answers to them."""

    def finish(self) -> dict[str, Any]:
        return {"truncated": self.model.truncated}


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
        "reads characters": not hasattr(getattr(encoder, "embeddings", None), "word"),
        "has no gradients in int8": not all(
            getattr(module, "differentiable", True) for module in network.modules()
        ),
    }
    obstacle = next((name for name, applies in obstacles.items() if applies), None)
    if obstacle:
        raise UsageError(
            f"explain needs an encoder that was trained on tokens, and {checkpoint} {obstacle}; "
            f"ask another checkpoint or precision, or without an explanation"
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


def explanation(
    found: Attribution,
    label: str | None,
    parts: Sequence[Part],
    own: tuple[str, int, int] | None = None,
) -> Explanation:
    """Return an attribution as answers have it.

    Args:
        label: what the logit is of: a label, tag, ending, answer or token; None: a regression.
        own: field, start and end of the word, tag or answer that is explained.

    Returns:
        `label`; `logit` of the text and `baseline`, without it; `tokens`: dicts of `field`, `text`,
        `start` and `end` (characters), `score`; `context`: which share of the absolute scores lies
        `left` of `own`, in its characters (`own`), `right`, and in the `other` field; without `own`
        in each of two fields. Shares are None if every score is 0.
    """
    tokens: list[dict[str, Any]] = [
        {"field": field, "text": content[start:end], "start": int(start), "end": int(end),
         "score": float(score)}
        for field, content, spans, scores in parts
        for (start, end), score in zip(spans, scores, strict=False)
    ]  # fmt: skip
    fields = [part.field for part in parts]
    places = ("left", "own", "right", "other")[: 2 + len(fields)] if own else fields
    sums = dict.fromkeys(places, 0.0)
    for token in tokens:
        side = token["field"]
        if own is not None:
            field, start, end = own
            near = "left" if token["end"] <= start else "right" if token["start"] >= end else "own"
            side = near if side == field else "other"
        sums[side] += abs(token["score"])
    total = sum(sums.values())
    shares = {side: share / total if total else None for side, share in sums.items()}
    return {
        "label": label,
        "logit": found.logit,
        "baseline": found.baseline,
        "tokens": tokens,
        "context": shares if len(shares) > 1 else {},
    }


def explain_text(
    model: FinetunedModel, split: Split, number: int, answer: Mapping[str, Any]
) -> Explanation:
    """Explain the label, score or ending of an answer to `classify` by text, pair and choice."""
    samples, examples = cast(Any, split.samples), cast(Any, split.examples)
    names = getattr(examples, "label_names", None)
    if is_choice := isinstance(examples, Choices):
        # The logit of an ending depends on its own sequence alone.
        row, samples = int(samples.counts[:number].sum()) + answer["choice"], samples.sequences
        contents = {"text": examples.contexts[number], "choice": answer["text"]}
    else:
        row, contents = number, {"text": examples.texts[number]}
        if examples.text_pairs is not None:
            contents["pair"] = examples.text_pairs[number]
    index = 0 if is_choice or names is None else names.index(answer["label"])
    found = _attribute(model, samples, row, lambda outputs: outputs[:, index])
    # An ending that is too long keeps its end, see `Choice.encode`.
    tail = is_choice and getattr(model.task.options, "truncate", None) == "context"
    frame, second = model.tokenizer, int(samples.second[row])
    separator = 1 if len(contents) == 1 else len(frame.pair_frame.separator)
    ranges = [(len(frame.special.begins), second - separator), (second, len(found.scores) - 1)]
    parts = []
    for (field, content), (begin, end) in zip(contents.items(), ranges, strict=False):
        spans = _spans(model, content)
        kept = spans[-(end - begin) :] if tail and field == "choice" else spans
        parts.append(Part(field, content, kept, found.scores[begin:end]))
    return explanation(found, answer.get("text" if is_choice else "label"), parts)


def explain_tag(
    model: FinetunedModel, split: Split, number: int, text: str, spans: Sequence[Span], word: int
) -> Explanation:
    """Explain the most probable tag of a word by the words of its window.

    Args:
        number: number of the sentence.
        text, spans: its text, and the characters of its words.
    """
    samples = cast(WordSamples, split.samples)
    windows = [i for i, own in enumerate(samples.windows) if own.sentence == number]
    # The windows of a sentence predict each of its words once, in order.
    sizes = np.concatenate([samples.sizes[i] for i in windows])
    row = next(i for i in windows if word < samples.windows[i].own[1])
    window = samples.windows[row]
    position = int(samples.first[row][word - window.own[0]])
    model.network.eval()
    with torch.no_grad():
        outputs = model.network(move(samples.batch([row], "rows"), model.device))
        index = int(outputs[0, position].argmax())
    found = _attribute(model, samples, row, lambda outputs: outputs[:, position, index])
    words = slice(*window.words)
    edges = np.cumsum([len(model.tokenizer.special.begins), *sizes[words]])
    scores = [found.scores[begin:end].sum() for begin, end in pairwise(edges)]
    label, (start, end) = str(model.metadata["labels"][index]), spans[word]
    part = Part("text", text, spans[words], scores)
    return explanation(found, label, [part], ("text", start, end))


def explain_answer(
    model: FinetunedModel, split: Split, number: int, start: int, end: int
) -> Explanation:
    """Explain an answer, the sum of its start and end logit, by question and passage.

    Args:
        start, end: characters of the answer in its passage.
    """
    samples, examples = cast(Windows, split.samples), cast(SquadExamples, split.examples)
    passage = examples.passage_of[number]
    spans, text, question = (
        samples.offsets[passage],
        examples.passages[passage],
        examples.questions[number],
    )
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
    frame = model.tokenizer
    asked = found.scores[len(frame.special.begins) : opens - len(frame.pair_frame.separator)]
    parts = [
        Part("question", question, _spans(model, question), asked),
        Part("passage", text, spans[opens - shift : closes - shift], found.scores[opens:closes]),
    ]
    return explanation(found, text[start:end], parts, ("passage", start, end))


def _spans(model: FinetunedModel, text: str) -> npt.NDArray[Any]:
    """Return the characters of a text's tokens, int64 [tokens, 2]."""
    ((_, spans),) = model.tokenizer.encode_with_offsets([text])
    return spans


def _attribute(
    model: FinetunedModel, rows: TextSamples, row: int, target: Callable[[Tensor], Tensor]
) -> Attribution:
    """Attribute a logit of a task's network to the positions of sequence `row`."""
    return attribute(
        model.network, model.tokenizer, model.device,
        lambda count: rows.batch([row] * count, "rows"), target,
    )  # fmt: skip
