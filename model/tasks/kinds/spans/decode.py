"""From logits to answers: the best spans of each window, the windows of a question together, and what is told of them.

As `write_predictions` in google-research/bert's run_squad.py, save that a window's best spans are looked for among all that may be given,
and not only among those of the best 20 starts and the best 20 ends; and that the text is cut out of the passage, by the
characters of its pieces.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from model.tasks.formats.squad import Questions
from model.tasks.kinds.spans.windows import BOUNDS, Windows
from pipeline.core import storage

PREDICTIONS, N_BEST, NULL_ODDS = "predictions.json", "nbest_predictions.json", "null_odds.json"


class WindowSpans(NamedTuple):
    """The best spans of one window, best first: positions in the sequence, and logits; and the logits at [CLS]."""

    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    start_logits: npt.NDArray[np.float32]
    end_logits: npt.NDArray[np.float32]
    null: tuple[float, float]


class Span(NamedTuple):
    """An answer: its text, its characters in the passage, from and to, and its logits."""

    text: str
    begin: int
    end: int
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was found for a question.

    Attributes:
        spans: the best answers, best first, of different texts; none where the passage holds nothing.
        null: the logits of "no answer", start and end: those of the window that says so least.
    """

    spans: tuple[Span, ...]
    null: tuple[float, float]

    @property
    def null_odds(self) -> float:
        """By how much "no answer" is above the best answer, in logits."""
        return sum(self.null) - (self.spans[0].score if self.spans else 0.0)

    @property
    def text(self) -> str:
        """Of the best answer; empty where there is none."""
        return self.spans[0].text if self.spans else ""

    def ranked(self, threshold: float | None) -> list[tuple[Span | None, float]]:
        """The answers with their probabilities among themselves, the likeliest first.

        Args:
            threshold: weigh "no answer" (None) with them, less by that much; None: leave it out.
        """
        entries: list[Span | None] = [*self.spans]
        scores = [span.score for span in self.spans]
        if threshold is not None or not entries:
            entries.append(None)
            scores.append(sum(self.null) - (threshold or 0.0))
        weights = np.exp(np.array(scores) - max(scores))
        pairs = zip(entries, (weights / weights.sum()).tolist(), strict=True)
        return sorted(pairs, key=lambda pair: -pair[1])  # of equals an answer is before none


def window_spans(logits: Tensor, bounds: Tensor, n_best: int, longest: int) -> list[WindowSpans]:
    """The best spans of every window of a batch.

    Args:
        logits: fp32 [B, L, 2], of starts and ends.
        bounds: int64 [B, 4], see `Windows`: a span begins among what counts in its window, and ends in the passage.
        n_best: how many, at most.
        longest: the most pieces of a span.
    """
    places = torch.arange(logits.shape[1], device=logits.device)
    low, high, first, last = (bounds[:, i : i + 1] for i in range(4))
    start = logits[..., 0].masked_fill((places < first) | (places >= last), -torch.inf)
    end = logits[..., 1].masked_fill((places < low) | (places >= high), -torch.inf)
    width = min(longest, logits.shape[1])
    ends = functional.pad(end, (0, width - 1), value=-torch.inf).unfold(1, width, 1)  # [B, L, width]
    total = (start[:, :, None] + ends).flatten(1)
    scores, best = total.topk(min(n_best, total.shape[1]), dim=1)
    starts = best // width
    stops = (starts + best % width).clamp(max=logits.shape[1] - 1)  # beyond the end there are only impossible ones
    found = torch.isfinite(scores).cpu().numpy()
    arrays = [part.cpu().numpy() for part in (starts, stops, start.gather(1, starts), end.gather(1, stops))]
    null = logits[:, 0].double().cpu().tolist()
    rows = []
    for row, kept in enumerate(found):
        begin, stop, begin_logits, stop_logits = (part[row][kept] for part in arrays)
        rows.append(WindowSpans(begin, stop, begin_logits, stop_logits, (null[row][0], null[row][1])))
    return rows


def together(answers: Sequence[WindowSpans], examples: Questions, samples: Windows, n_best: int) -> list[Found]:
    """What was found for each question, from all its windows."""
    lows = samples.targets[BOUNDS][:, 0]
    found = []
    edges = np.searchsorted(samples.question, np.arange(len(examples) + 1)).tolist()
    for number, (begin, end) in enumerate(itertools.pairwise(edges)):
        passage = examples.passage_of[number]
        text, offsets = examples.passages[passage], samples.offsets[passage]
        spans: list[Span] = []
        for window in range(begin, end):
            spans += _spans(answers[window], int(samples.begin[window] - lows[window]), text, offsets)
        spans.sort(key=lambda span: (-span.score, span.begin, span.end))
        distinct = {span.text: span for span in reversed(spans)}  # of one text the best
        chosen = sorted(distinct.values(), key=lambda span: (-span.score, span.begin, span.end))[:n_best]
        null = min((answers[window].null for window in range(begin, end)), key=sum)
        found.append(Found(spans=tuple(chosen), null=null))
    return found


def _spans(answer: WindowSpans, shift: int, text: str, offsets: npt.NDArray[np.int64]) -> list[Span]:
    begins = offsets[answer.starts + shift, 0].tolist()
    ends = offsets[answer.ends + shift, 1].tolist()
    logits = zip(answer.start_logits.tolist(), answer.end_logits.tolist(), strict=True)
    return [
        Span(text[begin:end], begin, end, start_logit, end_logit)
        for begin, end, (start_logit, end_logit) in zip(begins, ends, logits, strict=True)
        if text[begin:end].strip()
    ]


def write_official(directory: str, examples: Questions, texts: Sequence[str], found: Sequence[Found], *, null: bool) -> None:
    """The files that run_squad.py writes: predictions, n-best lists, and with `null` how likely it is that there is no answer."""
    best = {
        identity: [_entry(span, answer, probability) for span, probability in answer.ranked(0.0 if null else None)]
        for identity, answer in zip(examples.ids, found, strict=True)
    }
    _write(storage.join(directory, PREDICTIONS), dict(zip(examples.ids, texts, strict=True)))
    _write(storage.join(directory, N_BEST), best)
    if null:
        odds = {identity: answer.null_odds for identity, answer in zip(examples.ids, found, strict=True)}
        _write(storage.join(directory, NULL_ODDS), odds)


def _entry(span: Span | None, answer: Found, probability: float) -> dict[str, Any]:
    start, end = answer.null if span is None else (span.start_logit, span.end_logit)
    return {"text": "" if span is None else span.text, "probability": probability, "start_logit": start, "end_logit": end}


def _write(path: str, content: Any) -> None:
    storage.write_bytes(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass"))
