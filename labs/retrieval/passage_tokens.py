"""The passages of an index as tokens, and the likelihood of a text over passages.

A row of a document is not read with the passages that it comes from. Rows and passages are ranges
of their document's tokens, so those that overlap are known exactly. Ranges are numbered over all
documents, in the order of the index.

Likelihoods are p(y | x) = sum over z of p(z | x) p(y | x, z): REALM (Guu et al., 2020) sums for a
whole row, RAG (Lewis et al., 2020) for a target or each token. Shapes: B inputs, k passages of
each, D width of vectors, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from cloze.core import storage
from cloze.core.arrow import read_arrow
from cloze.core.ragged import offsets_of, ranges
from cloze.labs.retrieval.passages import PassageIndex
from cloze.model.data.layouts import MULTIPLE
from cloze.model.layers.batch import IGNORE_INDEX
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

COLUMNS = ("document", "title", "first", "sentences")


class PassageTokens:
    """Title and text of N passages, each with a final [SEP]; number N is the empty passage.

    Args:
        path: index artifact.
        room: maximum text tokens of a row, without special tokens.
        longest: maximum tokens of a passage, [SEP] included; longer ones are truncated.
        typed: True if tokens of a passage after a row have token type 1.

    Attributes:
        count: N.
        by_length: int64 [N], numbers of the passages, the shortest first.
        longest: tokens of the longest passage.
        pad: id of the padding token.

    Raises:
        DataError: `path` has no index, or a file is damaged.
    """

    def __init__(
        self, path: str, tokenizer: Tokenizer, *, room: int, longest: int, typed: bool
    ) -> None:
        self._special, self.pad, self._typed = tokenizer.special, tokenizer.special.pad, typed
        names = PassageIndex.open(path).names
        tables = [read_arrow(storage.join(path, name)).select(COLUMNS) for name in names]
        rows = [row for table in tables for row in table.to_pylist()]
        sentences = [sentence for row in rows for sentence in row["sentences"]]
        counts = np.array([len(row["sentences"]) for row in rows], np.int64)
        follows = np.ones(len(sentences), np.bool_)
        follows[offsets_of(counts)[:-1][np.array([row["first"] == 0 for row in rows])]] = False
        follows &= np.array(list(map(bool, sentences)), np.bool_)
        ids, offsets = tokenizer.encode_flat(sentences, follows)
        titles, title_offsets = tokenizer.encode_flat([row["title"] for row in rows])
        borders = offsets[offsets_of(counts)]  # tokens before each passage's text
        self._locate(rows, offsets, borders, counts, room)
        title_lengths = np.minimum(np.diff(title_offsets), longest - 1)
        lengths = np.minimum(np.diff(borders), longest - 1 - title_lengths)
        starts: list[Any] = [title_offsets[:-1], len(titles) + borders[:-1], len(titles) + len(ids)]
        pieces = np.stack(np.broadcast_arrays(*starts), axis=1)
        sizes = np.stack(np.broadcast_arrays(title_lengths, lengths, 1), axis=1)
        source = np.concatenate([titles, ids, [self._special.sep]])
        tokens = source[ranges(pieces.reshape(-1), sizes.reshape(-1))]
        ends = offsets_of(sizes.sum(axis=1))
        self._tensors["tokens"] = torch.from_numpy(tokens.astype(np.int32))
        self._tensors["offsets"] = torch.from_numpy(np.append(ends, ends[-1]))
        self._row, self.longest = room + 2, int(np.diff(ends).max(initial=0))
        self.count, self.by_length = len(rows), torch.from_numpy(np.argsort(np.diff(ends)))

    def _locate(
        self, rows: list[dict[str, Any]], offsets: Any, borders: Any, counts: Any, room: int
    ) -> None:
        """Number the tokens of all documents, and find where each sentence of a row may begin.

        A sentence of more than `room` tokens counts as several in a row's source, see
        `cloze.pipeline.dataset.pairings.continuous.cut_sentences`.
        """
        documents = np.array([row["document"] for row in rows], np.uint64)
        opens = np.flatnonzero(np.append(True, documents[1:] != documents[:-1]))
        parts = np.maximum(1, -(-np.diff(offsets) // room))
        places = np.repeat(offsets[:-1], parts) + room * ranges(np.zeros_like(parts), parts)
        first = offsets_of(parts)[offsets_of(counts)[opens]]  # of the document, in `places`
        keys = documents[opens].view(np.int64)
        order = np.argsort(keys)
        arrays = {
            "keys": keys[order],
            "first": first[order],
            "places": places,
            "borders": borders.astype(np.int64),
        }
        self._tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}

    def to(self, device: torch.device) -> None:
        self._tensors = {name: tensor.to(device) for name, tensor in self._tensors.items()}

    def overlapping(self, source: Tensor, lengths: Tensor) -> Tensor:
        """Return the first and the end of the passages that each row comes from, int64 [B, 2].

        Args:
            source: int64 [B, 2], document and sentence in which the row begins.
            lengths: int64 [B], tokens of each row, with [CLS] and [SEP].
        """
        keys, first, places, borders = (
            self._tensors[name] for name in ("keys", "first", "places", "borders")
        )
        document = torch.searchsorted(keys, source[:, 0].contiguous()).clamp(max=len(keys) - 1)
        begin = places[(first[document] + source[:, 1]).clamp(max=len(places) - 1)]
        low = torch.searchsorted(borders, begin, right=True) - 1
        high = torch.searchsorted(borders, begin + lengths - 2)
        found = keys[document] == source[:, 0]
        return torch.stack([low, high], dim=1) * found[:, None]

    def after(
        self, rows: Tensor, lengths: Tensor, numbers: Tensor, *, fits: bool = True
    ) -> dict[str, Tensor]:
        """Return a batch of rows with a passage after each.

        Args:
            rows: int64 [R, L], with padding after `lengths`, int64 [R].
            numbers: int64 [R], passage of each row.
            fits: the batch is as long as its longest row, which the host must ask for; else as any.
        """
        tokens, offsets = self._tensors["tokens"], self._tensors["offsets"]
        starts = offsets[numbers]
        totals = lengths + offsets[numbers + 1] - starts
        width = min(rows.shape[1], self._row) + self.longest
        if fits:
            width = -(-int(totals.max()) // MULTIPLE) * MULTIPLE
        places = torch.arange(width, device=rows.device).expand(len(rows), -1)
        own = rows.gather(1, places.clamp(max=rows.shape[1] - 1))
        index = (starts - lengths)[:, None] + places
        others = tokens[index.clamp(min=0, max=len(tokens) - 1)].long()
        second = places >= lengths[:, None]
        real = places < totals[:, None]
        ids = torch.where(second, others, own).masked_fill(~real, self._special.pad)
        types = (second & real).long() if self._typed else torch.zeros_like(ids)
        return {"input_ids": ids, "attention_mask": real, "token_type_ids": types}

    def alone(self, numbers: Tensor, *, fits: bool = True) -> dict[str, Tensor]:
        """Return a batch of passages, `[CLS] passage [SEP]`; the empty one is `[CLS]`."""
        first = torch.full((len(numbers), 1), self._special.cls, device=numbers.device)
        batch = self.after(first, torch.ones_like(numbers), numbers, fits=fits)
        return {**batch, "token_type_ids": torch.zeros_like(batch["token_type_ids"])}


def log_prior(
    questions: Tensor, passages: Tensor, temperature: float, excluded: Tensor | None = None
) -> Tensor:
    """Return log p(z | x), float32 [B, k], from vectors [B, D] and [B, k, D]."""
    scores = (questions[:, None] * passages).sum(dim=2) / temperature  # no matrix product: in fp32
    if excluded is not None:
        scores = scores.masked_fill(excluded, -torch.inf)
    return scores.log_softmax(dim=1)


def log_probabilities(logits: Any) -> Tensor:
    """Return log p of every token, float32 [..., V], from logits that may not be computed yet."""
    whole: Tensor = logits if isinstance(logits, Tensor) else logits.whole()
    return whole.float().log_softmax(dim=-1)


def of_labels(likely: Tensor, labels: Tensor) -> Tensor:
    """Return log p of the labels, float32 [...], of [..., V]; 0 where there is none."""
    right = likely.gather(-1, labels.clamp(min=0)[..., None]).squeeze(-1)
    return right.masked_fill(labels == IGNORE_INDEX, 0.0)


def log_marginal(prior: Tensor, given: Tensor) -> Tensor:
    """Return log p(y | x), [B] or [B, T], of log p(y | x, z), [B, k] or [B, k, T] of each token."""
    prior = prior if given.dim() == prior.dim() else prior[:, :, None]
    return (prior + given).logsumexp(dim=1)
