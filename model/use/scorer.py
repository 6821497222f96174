"""A pretrained checkpoint in memory that scores sentences: the log-probability of every piece, and their sum."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from model import checkpoint
from model.data.batch import LAYOUT, Batch, move
from model.data.layouts import Sequences, layout_for, make_layout
from model.data.prefetch import prefetched
from model.families.config import ways
from model.families.models import restore
from model.families.pretraining import PretrainingModel, encoded
from model.layers.encoder import Encoder
from model.layers.layout import Rows
from model.train.precision import DTYPES, Precision
from model.use.pseudo_likelihood import Floats, Mask, Part, parts, questions
from pipeline import tokenizer
from pipeline.core.errors import DataError, UsageError

Normalization = Literal["none", "tokens", "penalty"]
TOKENS = {"cpu": 2048, "cuda": 65536}  # of a batch; on a CPU most of what goes from layer to layer then stays in its cache
SENTENCES = 4096  # whose copies are in memory at once
ROWS = 64  # of logits whose normalizers are computed at once
PENALTY = 0.8  # Lau et al. 2020, "How Furiously Can Colorless Green Ideas Sleep?", table 2: PenLP, after Wu et al. 2016


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A sentence's pieces and the log-probability of each, in nats: float64 [n]."""

    pieces: tuple[str, ...]
    log_probabilities: Floats

    def score(self, normalization: Normalization = "none") -> float:
        """The sum; by `tokens` divided by how many there are, by `penalty` by ((5 + n) / 6) ** 0.8."""
        total, count = float(self.log_probabilities.sum()), len(self.pieces)
        if normalization == "tokens":
            return total / count
        return total / ((5 + count) / 6) ** PENALTY if normalization == "penalty" else total


class Scorer:
    """A checkpoint that scores sentences: by pseudo-log-likelihood, or from left to right where that is how it reads.

    Args:
        path: a pretrained checkpoint, or the artifact that holds it.
        mask: see `model.use.pseudo_likelihood`; `causal`: read from left to right, by a model that was trained to. It says nothing to a
            model that reads in no other way.
        precision: of the encoder. The head is computed in fp32 in any case: bf16 keeps two to three digits of a logit, and scores of
            minimal pairs differ in the third.

    Attributes:
        left_to_right: whether the model names next pieces here.
        device, precision: what it computes on, and in.
        parameters: its weights.

    Raises:
        UsageError: the checkpoint has no head that names pieces, or does not read from left to right.
        DataError: there is no checkpoint at that path, or it is damaged.
    """

    def __init__(
        self,
        path: str,
        *,
        mask: Mask | Literal["causal"] = "token",
        precision: Precision = "fp32",
        device: torch.device | None = None,
    ) -> None:
        with checkpoint.held(path) as directory:
            loaded = checkpoint.load(directory)
            self.pieces = tokenizer.load(loaded.tokenizer)
        names = ways(loaded.heads)
        if not names:
            raise UsageError(
                f"{path} has no masked_lm or lm head (it has {', '.join(loaded.heads)}); name a pretrained checkpoint"
            )
        able = {"lm", "clm"} & set(names)
        if mask == "causal" and not able:
            raise UsageError(
                f"mask (causal): {path} was not trained from left to right (clm); use token, whole-word or word-l2r"
            )
        self.left_to_right = mask == "causal" or set(names) == able
        self._causal, self._before = self.left_to_right and "lm" not in names, "mntp" in names
        self.path, self.longest = path, loaded.model.max_position_embeddings
        self._mask: Mask | None = None if self.left_to_right or mask == "causal" else mask
        self.device, self.precision = device or torch.device("cpu"), precision
        self.parameters = sum(tensor.numel() for tensor in loaded.state.values())
        network = restore(loaded.model, loaded.state).to(self.device)
        reader: Any = getattr(network, "generator", network)  # of ELECTRA, the part that fills masks
        self._reader: nn.Module = reader
        self._encoder: Encoder = reader.encoder
        self._head: nn.Module = copy.deepcopy(reader.lm if "lm" in names else reader.masked_lm)
        self._words = reader.encoder.embeddings.word.weight.detach().clone()  # the decoder's
        # Weights and states, not products alone: under autocast an eighth of the time went into casting from one to the other.
        network.to(DTYPES[precision])
        self._layout = layout_for([self._reader], self.device, DTYPES[precision])

    def scored(
        self,
        texts: Sequence[str],
        where: Callable[[int], str] | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[Scored]:
        """Every text's pieces with their log-probabilities, in the order of the texts. Equal texts are computed once.

        Args:
            where: the place that text i comes from, for messages.
            progress: called with how many distinct texts are done, and how many there are.

        Raises:
            DataError: a text is longer than the model reads, or has no piece.
        """
        distinct = list(dict.fromkeys(texts))
        first = {text: number for number, text in reversed(list(enumerate(texts)))}
        cut = self.pieces.encode_batch(distinct)
        for text, inner in zip(distinct, cut, strict=True):
            self._check(text, len(inner), f"{where(first[text])}: " if where else "")
        framed = [np.array([self.pieces.special.cls, *inner, self.pieces.special.sep], np.int32) for inner in cut]
        found: dict[str, Scored] = {}
        progress(0, len(distinct))
        for begin in range(0, len(distinct), SENTENCES):
            part = slice(begin, begin + SENTENCES)
            answers = self._answers(framed[part])
            for text, inner, own in zip(distinct[part], cut[part], answers, strict=True):
                named = tuple(str(self.pieces.backend.id_to_token(token)) for token in inner)
                found[text] = Scored(pieces=named, log_probabilities=own)
            progress(min(begin + SENTENCES, len(distinct)), len(distinct))
        return [found[text] for text in texts]

    def check(self, text: str) -> None:
        """Raise what `scored` would raise of this text."""
        self._check(text, len(self.pieces.encode_batch([text])[0]), "")

    def _check(self, text: str, count: int, place: str) -> None:
        if not count:
            raise DataError(f"{place}the text {text[:60]!r} has no words in it; leave it out")
        if count + 2 > self.longest:
            raise DataError(f"{place}the text {text[:60]!r} has {count + 2} pieces, the model reads {self.longest}; shorten it")

    def _answers(self, sentences: Sequence[npt.NDArray[np.int32]]) -> list[Floats]:
        """The log-probabilities of each sentence's inner pieces."""
        asked = questions(sentences, self.pieces.word_start, self.pieces.special.mask, self._mask)
        if self._before and not self.left_to_right:
            asked = replace(asked, position=asked.position - 1)
        found = np.zeros(len(asked.label))
        made = list(parts(asked, TOKENS[self.device.type], self.pieces.special.pad))
        with torch.inference_mode(), prefetched(map(self._batch, made), self.device) as batches:
            for part, batch in zip(made, batches, strict=True):
                label = torch.from_numpy(asked.label[part.asked]).to(self.device)
                found[part.asked] = self._read(move(batch, self.device), label).cpu().numpy()
        bounds = np.cumsum([0, *(len(sentence) - 2 for sentence in sentences)])
        return [found[begin:end] for begin, end in itertools.pairwise(bounds.tolist())]

    def _batch(self, part: Part) -> Batch:
        ids = torch.from_numpy(part.ids)
        batch: Batch = {
            "input_ids": ids,
            "token_type_ids": torch.zeros_like(ids),
            "wanted": torch.from_numpy(part.wanted),
            "place": torch.from_numpy(part.place),
        }
        length = part.ids.shape[1]
        if int(part.lengths[-1]) < length:
            batch["attention_mask"] = torch.arange(length) < torch.from_numpy(part.lengths)[:, None]
        causal = np.ones(len(part.lengths), np.bool_) if self._causal else None
        layout = make_layout(self._layout, Sequences.alone(part.lengths, length, causal))
        if layout is None and part.one_each and self._encoder.unpads:
            layout = Rows((len(ids), length), batch.get("attention_mask"), one_each=True)
        return batch if layout is None else {**batch, LAYOUT: layout}

    def _read(self, batch: Batch, label: Tensor) -> Tensor:
        """The log-probability of each label [P] at its place, fp32."""
        logits = self._head(self._states(batch).float(), self._words)
        normalizer = torch.cat([part.logsumexp(dim=-1) for part in logits.split(ROWS)])
        place = batch["place"]
        answers: Tensor = logits[place, label] - normalizer[place]
        return answers

    def _states(self, batch: Batch) -> Tensor:
        """The last layer's states at the wanted places, float [M, D]."""
        if isinstance(self._reader, PretrainingModel):
            return self._reader.encode(batch, batch["wanted"])
        return encoded(self._encoder, batch["input_ids"], batch, batch["wanted"])
