"""Scores of sentences: log-probabilities of their tokens, and their sum.

Masked language models score by pseudo-log-likelihood (`masked_copies.py`), others left to right.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cloze.core.errors import DataError, UsageError
from cloze.model import checkpoint
from cloze.model.data.batch import move, prefetch_batches
from cloze.model.data.layouts import Sequences, layout_for, make_layout
from cloze.model.families.config import prediction_objectives
from cloze.model.families.models import load_model
from cloze.model.families.pretraining import PretrainingModel, encode
from cloze.model.layers.batch import Batch
from cloze.model.layers.encoder import Encoder
from cloze.model.objectives import objectives
from cloze.model.train.device_scalars import read_async
from cloze.model.train.precision import DTYPES, Precision, place
from cloze.model.use.masked_copies import Bools, Mask, ScoringBatch, mask_sentences, scoring_batches

Floats = npt.NDArray[np.float64]
Normalization = Literal["none", "tokens", "penalty"]
# Tokens per batch; on a CPU most activations then stay in its cache.
CPU_TOKENS, GPU_TOKENS = 2048, 65536
SENTENCES = 4096  # sentences whose copies are in memory at once
LOGITS = 2048  # rows of logits in memory at once: 0.4 GB in fp32 for RoBERTa's vocabulary
ROWS = 64  # rows of logits whose normalizers a CPU computes at once
# PenLP, after Wu et al. 2016: Lau et al. 2020, "How Furiously Can Colorless Green Ideas Sleep?",
# table 2.
PENALTY = 0.8


class _TokenBatch(Batch):
    """A `ScoringBatch` as tensors: `positions`, `rows` and `label` as there."""

    positions: Tensor
    rows: Tensor
    label: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredSentence:
    """Tokens of a sentence, without its context, and their log-probabilities, float64 [n]."""

    pieces: tuple[str, ...]
    log_probabilities: Floats

    def score(self, normalization: Normalization = "none") -> float:
        """Return the sum, divided for `tokens` by n, for `penalty` by ((5 + n) / 6) ** 0.8."""
        total, count = float(self.log_probabilities.sum()), len(self.pieces)
        if normalization == "tokens":
            return total / count
        return total / ((5 + count) / 6) ** PENALTY if normalization == "penalty" else total


class SentenceScorer:
    """Checkpoint that scores sentences, by pseudo-log-likelihood or left to right.

    Args:
        path: pretrained checkpoint, or an artifact that contains one.
        mask: mask of a scored token, see the module; `causal`: score left to right. Ignored by
            models that only predict left to right.
        precision: precision of the encoder. The head is computed in fp32: bf16 keeps two to three
            digits of a logit, and scores of minimal pairs differ in the third.

    Attributes:
        left_to_right: scores are left to right.
        longest: maximum tokens per text, special tokens included.
        device, precision: of the computation.
        parameters: number of weights.

    Raises:
        UsageError: the checkpoint has no language-model head, or no left-to-right objective.
        DataError: the checkpoint is missing or damaged.
    """

    def __init__(
        self,
        path: str,
        *,
        mask: Mask | Literal["causal"] = "token",
        precision: Precision = "fp32",
        device: torch.device | None = None,
    ) -> None:
        loaded, self.pieces = checkpoint.load_with_tokenizer(path)
        names = prediction_objectives(loaded.heads)
        if not names or loaded.model.is_encoder_decoder:
            raise UsageError(
                f"{path} has no masked_lm or lm head (it has {', '.join(loaded.heads)}); name a "
                f"pretrained checkpoint"
            )
        loaded.require_trained("masked_lm", "lm")
        if unmasked := [own.name for own in objectives(names) if own.transform]:
            raise UsageError(
                f"{path} was trained without masks ({unmasked[0]}), which scores need; use a model "
                f"that was trained with --objective mlm"
            )
        causal_names = {"lm", "clm"} & set(names)
        if mask == "causal" and not causal_names:
            raise UsageError(
                f"mask (causal): {path} was not trained from left to right (clm); use token, "
                f"whole-word or word-l2r"
            )
        self.left_to_right = mask == "causal" or set(names) == causal_names
        self._causal, self._before = self.left_to_right and "lm" not in names, "mntp" in names
        self.path, self.longest = path, loaded.model.max_position_embeddings
        self._mask: Mask | None = None if self.left_to_right or mask == "causal" else mask
        self.device, self.precision = device or torch.device("cpu"), precision
        self.parameters = sum(tensor.numel() for tensor in loaded.state.values())
        network = place(load_model(loaded.model, loaded.state), self.device, precision)
        # ELECTRA's generator fills masks; its discriminator does not.
        reader: Any = getattr(network, "generator", network)
        self._reader: nn.Module = reader
        self._encoder: Encoder = reader.encoder
        self._head: nn.Module = copy.deepcopy(reader.lm if "lm" in names else reader.masked_lm)
        self._words = reader.encoder.embeddings.word.weight.detach().clone()  # of the decoder
        # Casts weights too: under autocast, casting took an eighth of the time.
        network.to(DTYPES[precision])
        self._layout = layout_for([self._reader], self.device, DTYPES[precision])

    def scored(
        self,
        texts: Sequence[str],
        where: Callable[[int], str] | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
        starts: Sequence[int] | None = None,
    ) -> list[ScoredSentence]:
        """Return tokens and log-probabilities of each text, in order; equal texts run once.

        Args:
            where: gives the origin of text i, for messages.
            progress: called with the number of finished distinct texts and of all.
            starts: first character of each text that is scored; None: 0. A token that overlaps it
                is scored.

        Raises:
            DataError: a text is longer than the model reads, or no token of it is scored.
        """
        keys = list(zip(texts, starts or [0] * len(texts), strict=True))
        first_index: dict[tuple[str, int], int] = {}
        for number, key in enumerate(keys):
            first_index.setdefault(key, number)
        distinct = list(first_index)
        encoded = self.pieces.encode_batch([text for text, _ in distinct])
        contexts = self._contexts(distinct)
        for key, inner, context in zip(distinct, encoded, contexts, strict=True):
            origin = f"{where(first_index[key])}: " if where else ""
            self._check(key[0], len(inner), context, origin)
        scored: dict[tuple[str, int], ScoredSentence] = {}
        progress(0, len(distinct))
        for begin in range(0, len(distinct), SENTENCES):
            batch = slice(begin, begin + SENTENCES)
            tokens = [np.array(inner, np.int32) for inner in encoded[batch]]
            answers = self.log_probabilities(
                tokens, [self.pieces.word_start[inner] for inner in tokens], contexts[batch]
            )
            for key, inner, context, log_probabilities in zip(
                distinct[batch], encoded[batch], contexts[batch], answers, strict=True
            ):
                own = inner[context:]
                pieces = tuple(str(self.pieces.backend.id_to_token(token)) for token in own)
                scored[key] = ScoredSentence(pieces=pieces, log_probabilities=log_probabilities)
            progress(min(begin + SENTENCES, len(distinct)), len(distinct))
        return [scored[key] for key in keys]

    def check(self, text: str) -> None:
        """Raise the error that `scored` would raise for this text."""
        self._check(text, len(self.pieces.encode_batch([text])[0]), 0, "")

    def _contexts(self, keys: Sequence[tuple[str, int]]) -> list[int]:
        """Return how many tokens of each text end at its first scored character or before."""
        encoded = iter(self.pieces.encode_with_offsets([text for text, start in keys if start]))
        return [int((next(encoded)[1][:, 1] <= start).sum()) if start else 0 for _, start in keys]

    def _check(self, text: str, count: int, context: int, location: str) -> None:
        if count <= context:
            raise DataError(f"{location}the text {text[:60]!r} has no words in it; leave it out")
        if count + 2 > self.longest:
            raise DataError(
                f"{location}the text {text[:60]!r} has {count + 2} pieces, the model reads "
                f"{self.longest}; shorten it"
            )

    def log_probabilities(
        self,
        sentences: Sequence[npt.NDArray[np.int32]],
        word_starts: Sequence[Bools],
        context: Sequence[int] | None = None,
    ) -> list[Floats]:
        """Return the log-probability of each token in nats, float64 [n_i - context_i].

        Args:
            sentences: int32 [n_i] each, without special tokens, at most `longest - 2`.
            word_starts: bool [n_i] each, tokens that begin a word.
            context: leading tokens of each sentence that are not predicted; None: 0.
        """
        special = self.pieces.special
        framed = [
            np.concatenate(([special.cls], tokens, [special.sep])).astype(np.int32)
            for tokens in sentences
        ]
        context = context or [0] * len(sentences)
        copies = mask_sentences(framed, word_starts, special.mask, self._mask, context)
        if self._before and not self.left_to_right:
            copies = copies._replace(position=copies.position - 1)
        log_probabilities = np.zeros(len(copies.label))
        tokens = CPU_TOKENS if self.device.type == "cpu" else GPU_TOKENS
        parts = list(scoring_batches(copies, tokens, special.pad))
        with (
            torch.inference_mode(),
            prefetch_batches(map(self._batch, parts), self.device) as batches,
        ):
            results = (
                (part.predictions, [self._read(move(batch, self.device), part)])
                for part, batch in zip(parts, batches, strict=True)
            )
            for predictions, (answers,) in read_async(results):
                log_probabilities[predictions] = answers
        bounds = np.cumsum(
            [0, *(len(own) - first for own, first in zip(sentences, context, strict=True))]
        )
        return [log_probabilities[begin:end] for begin, end in itertools.pairwise(bounds.tolist())]

    def _batch(self, part: ScoringBatch) -> _TokenBatch:
        ids = torch.from_numpy(part.ids)
        batch: _TokenBatch = {
            "input_ids": ids,
            "token_type_ids": torch.zeros_like(ids),
            "positions": torch.from_numpy(part.positions),
            "rows": torch.from_numpy(part.rows),
            "label": torch.from_numpy(part.label),
        }
        length = part.ids.shape[1]
        if int(part.lengths[-1]) < length:
            batch["attention_mask"] = torch.arange(length) < torch.from_numpy(part.lengths)[:, None]
        causal = np.ones(len(part.lengths), np.bool_) if self._causal else None
        layout = make_layout(self._layout, Sequences.alone(part.lengths, length, causal))
        if layout is not None:
            batch["layout"] = layout
        return batch

    def _read(self, batch: _TokenBatch, part: ScoringBatch) -> Tensor:
        """Return the log-probability of each label at its position, fp32 [P]."""
        answers = []
        starts = range(0, len(part.positions), LOGITS)
        edges = np.searchsorted(part.rows, [*starts, len(part.positions)]).tolist()
        at_once = ROWS if self.device.type == "cpu" else LOGITS
        for start, states, (begin, end) in zip(
            starts, torch.split(self._states(batch), LOGITS), itertools.pairwise(edges), strict=True
        ):
            logits = self._head(states.float(), self._words)
            normalizer = torch.cat([chunk.logsumexp(dim=-1) for chunk in logits.split(at_once)])
            row = batch["rows"][begin:end] - start
            answers.append(logits[row, batch["label"][begin:end]] - normalizer[row])
        return torch.cat(answers)

    def _states(self, batch: _TokenBatch) -> Tensor:
        """Return the last layer's states at the batch's positions, float [M, D]."""
        if isinstance(self._reader, PretrainingModel):
            return self._reader.encode(batch, batch["positions"])
        return encode(self._encoder, batch["input_ids"], batch, batch["positions"])
