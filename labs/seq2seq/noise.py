"""Noise of encoder-decoders: a stored row and its masks become a source and a target.

The masks are those that the dataset stores for masked language models, so one dataset serves all
objectives. T5's table (Raffel et al., 2020, Table 3) and BART's transformations (Lewis et al.,
2020, section 2.2) are functions of this module, a row each in `NOISES`. A row without its first
[CLS] and last [SEP] is a *body*; sources are `[CLS] … [SEP]`, targets `… [SEP]`.

Numbers that a noise draws follow from the seed and the sample's number alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count, takewhile

import numpy as np
import numpy.typing as npt
import torch

from cloze.core import random_keys
from cloze.core.errors import UsageError
from cloze.core.ragged import I64, offsets_of
from cloze.labs.seq2seq.encoder_decoder import EncoderDecoderConfig
from cloze.model.data.layouts import MULTIPLE
from cloze.model.data.rows import MaskedRows
from cloze.model.families.config import ModelConfig
from cloze.model.layers.batch import IGNORE_INDEX, Batch
from cloze.model.random_streams import Stream
from cloze.pipeline import tokenizer
from cloze.pipeline.dataset.schema import DatasetInfo

MEAN_SPAN = 3.0  # tokens: T5, section 3.3.4, and BART's Poisson distribution
STOPS = (".", "!", "?")  # ends of sentences

Bools = npt.NDArray[np.bool_]
Pair = tuple[I64, I64]  # ids of source and target, without the frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A row's text, its masks, and its random numbers.

    Attributes:
        ids: int64 [n], unmasked.
        masked: bool [n], positions of the stored masks.
        shown: int64 [n], ids with the stored replacements.
        key: random key.
    """

    ids: I64
    masked: Bools
    shown: I64
    key: int

    def draw(self, count: int, use: int = 0) -> npt.NDArray[np.float64]:
        """Return uniform numbers in [0, 1), [count]; `use` tells apart the draws of a noise."""
        return random_keys.uniform(random_keys.fold_in(self.key, use, np.arange(count)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """The noise of a training.

    Attributes:
        name: row of `NOISES`.
        seed: seed of the training.
        pad, cls, sep, mask: special tokens.
        sentinels: ids of removed spans, in order; the last one stands for all further spans.
        stops: ids that end a sentence.
        stored_spans: the dataset's masks are spans, and need not be grouped.
        first: id with which targets begin (BART's <s>); None: with the text.
        longest: maximum length of a source, in tokens; longer ones are cut.
    """

    name: str
    seed: int
    pad: int
    cls: int
    sep: int
    mask: int
    sentinels: tuple[int, ...] = ()
    stops: tuple[int, ...] = ()
    stored_spans: bool = False
    first: int | None = None
    longest: int

    def pairs(self, rows: MaskedRows, samples: I64) -> list[Pair]:
        """Return source and target of each row, framed.

        Args:
            samples: int64 [B], sample numbers of the rows in the run.
        """
        apply = NOISES[self.name]
        keys = random_keys.fold_in(self.seed, Stream.NOISE, samples).tolist()
        starts, masks = offsets_of(rows.lengths).tolist(), offsets_of(rows.counts).tolist()
        begin = [] if self.first is None else [self.first]
        pairs = []
        for row, key in enumerate(keys):
            ids = rows.ids[starts[row] : starts[row + 1]].astype(np.int64)
            positions = rows.positions[masks[row] : masks[row + 1]]
            shown, masked = ids.copy(), np.zeros(len(ids), np.bool_)
            shown[positions] = rows.replacements[masks[row] : masks[row + 1]]
            masked[positions] = True
            text = slice(int(ids[0] == self.cls), len(ids) - int(ids[-1] == self.sep))
            body = Body(ids=ids[text], masked=masked[text], shown=shown[text], key=key)
            source, target = apply(body, self)
            opens = [] if self.cls == self.pad else [self.cls]  # T5's own vocabulary
            framed = [*opens, *source, self.sep], [*begin, *target, self.sep]
            pairs.append((np.array(framed[0]), np.array(framed[1])))
        return pairs

    def collate(
        self, rows: MaskedRows, samples: I64, plain: Callable[[MaskedRows], Batch]
    ) -> Batch:
        """Return the batch of noised rows, in `target_labels` what is to be written."""
        longest = self.longest
        pairs = self.pairs(rows, samples)
        sources = padded([source[:longest] for source, _ in pairs], self.pad)
        nothing = torch.zeros(1, dtype=torch.int64)
        return {
            "input_ids": sources,
            "attention_mask": padded([np.ones_like(s[:longest]) for s, _ in pairs], 0).bool(),
            "token_type_ids": torch.zeros_like(sources),
            "masked_positions": nothing,
            "masked_labels": nothing + IGNORE_INDEX,
            "target_labels": padded([target for _, target in pairs], IGNORE_INDEX),
            "pair_labels": torch.full((len(pairs),), IGNORE_INDEX),
        }

    def empty(self, batch: Batch) -> Batch:
        return batch


def padded(rows: list[I64], filler: int) -> torch.Tensor:
    """Return rows as int64 [B, L], L a multiple of `MULTIPLE`."""
    length = -(-max(map(len, rows)) // MULTIPLE) * MULTIPLE
    array = np.full((len(rows), length), filler, np.int64)
    for number, row in enumerate(rows):
        array[number, : len(row)] = row
    return torch.from_numpy(array)


def noise_of(name: str, model: ModelConfig, info: DatasetInfo, path: str, seed: int) -> Noise:
    """Return the noise of the objective `name` for rows of a dataset.

    Args:
        path: tokenizer of the dataset. Its `<extra_id_0>` and so on are sentinels, or else the
            model's ids behind its own.

    Raises:
        UsageError: the noise needs sentinels, and neither tokenizer nor model has any.
    """
    assert isinstance(model, EncoderDecoderConfig)  # no other has the head of these objectives
    vocabulary = tokenizer.load(path).backend.get_vocab(with_added_tokens=True)
    named = list(takewhile(lambda token: token in vocabulary, map("<extra_id_{}>".format, count())))
    sentinels = [vocabulary[token] for token in named] or range(info.vocab_size, model.vocab_size)
    if NOISES[name] in (replace_spans, random_spans) and not sentinels:
        raise UsageError(
            f"objective ({name}) replaces spans by sentinels, and the model has no ids for them; "
            f"set model.sentinels to 100, or train with --objective infilling"
        )
    special = info.special
    return Noise(
        name=name,
        seed=seed,
        pad=special.pad,
        cls=special.cls,
        sep=special.sep,
        mask=special.mask,
        sentinels=tuple(sentinels),
        stops=tuple(id_ for token, id_ in vocabulary.items() if token.strip("Ġ▁") in STOPS),
        stored_spans=(info.masks or {}).get("rule") in ("span", "n-gram"),
        first=model.first_target_id,
        longest=info.length,
    )


# T5's objectives, in the order of its Table 3. The comments show "Thank you for inviting me to
# your party last week ." with "for inviting" and "last" masked.


def prefix_lm(body: Body, noise: Noise) -> Pair:
    """Cut the row at a random place: Thank you for inviting -> me to your party last week ."""
    cut = 1 + int(body.draw(1)[0] * max(1, len(body.ids) - 1))
    return body.ids[:cut], body.ids[cut:]


def bert_style(body: Body, noise: Noise) -> Pair:
    """Show the stored replacements: Thank you <M> <M> me to your party apple week . -> all."""
    return body.shown, body.ids


def deshuffling(body: Body, noise: Noise) -> Pair:
    """Shuffle the tokens: party me for your to . last fun you inviting week Thank -> all."""
    return body.ids[np.argsort(body.draw(len(body.ids)), kind="stable")], body.ids


def mass_style(body: Body, noise: Noise) -> Pair:
    """Mask every token: Thank you <M> <M> me to your party <M> week . -> all (BART: masking)."""
    return np.where(body.masked, noise.mask, body.ids), body.ids


def replace_spans(body: Body, noise: Noise) -> Pair:
    """Replace runs: Thank you <X> me to your party <Y> week . -> <X> for inviting <Y> last <Z>."""
    return _sentineled(body.ids, body.masked, noise.sentinels)


def drop_tokens(body: Body, noise: Noise) -> Pair:
    """Drop masked tokens: Thank you me to your party week . -> for inviting last."""
    return body.ids[~body.masked], body.ids[body.masked]


def random_spans(body: Body, noise: Noise) -> Pair:
    """Replace spans of a mean of three tokens; as many tokens as the stored masks have.

    Stored spans are taken as they are. Others are regrouped as in T5's program
    (text-to-text-transfer-transformer, preprocessors.py, `random_spans_noise_mask`): masked and
    other tokens are cut into equally many random parts, which alternate, first an unmasked one.
    """
    masked, count = body.masked, int(body.masked.sum())
    if not noise.stored_spans and count and count < len(masked):
        spans = max(1, min(round(count / MEAN_SPAN), len(masked) - count))
        others = _parts(len(masked) - count, spans, body.draw(len(masked), 1))
        lengths = _parts(count, spans, body.draw(count, 2))
        masked = np.repeat(np.tile([False, True], spans), np.ravel((others, lengths), "F"))
    return _sentineled(body.ids, masked, noise.sentinels)


def _parts(total: int, parts: int, draws: npt.NDArray[np.float64]) -> I64:
    """Return the sizes of `parts` random parts of `total`, at least 1 each."""
    cuts = np.sort(np.argsort(draws[: total - 1], kind="stable")[: parts - 1]) + 1
    return np.diff(np.concatenate([[0], cuts, [total]]))


def _sentineled(ids: I64, masked: Bools, sentinels: tuple[int, ...]) -> Pair:
    """Replace each run of masked tokens by a sentinel; the target has sentinels before its runs."""
    opens = masked & ~np.concatenate([[False], masked[:-1]])
    starts = np.flatnonzero(opens)
    marks = np.array(sentinels)[np.minimum(np.arange(len(starts) + 1), len(sentinels) - 1)]
    source = ids.copy()
    source[starts] = marks[:-1]
    before = np.searchsorted(np.flatnonzero(masked), starts)
    target = np.insert(ids[masked], before, marks[:-1])
    return source[~masked | opens], np.append(target, marks[-1])


# BART's transformations, in the order of its section 2.2; token masking is `mass_style`.


def token_deletion(body: Body, noise: Noise) -> Pair:
    """Delete masked tokens; the target is the whole row."""
    return body.ids[~body.masked], body.ids


def infilling(body: Body, noise: Noise) -> Pair:
    """Replace each of some spans by one [MASK], as many tokens as the stored masks have.

    Stored spans are taken as they are. Others have lengths from a Poisson distribution of mean 3;
    a span of no tokens inserts a [MASK].
    """
    ids, masked = body.ids, body.masked
    count = int(masked.sum())
    if noise.stored_spans:
        opens = masked & ~np.concatenate([[False], masked[:-1]])
        return np.where(opens, noise.mask, ids)[~masked | opens], ids
    lengths = np.searchsorted(_POISSON, body.draw(count + 1))
    lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), count)) + 1]
    kept = len(ids) - count
    spans = min(len(lengths), kept + 1)
    if not count or not spans:
        return ids, ids
    lengths = lengths[:spans]
    lengths[-1] += min(count, len(ids)) - lengths.sum()  # the last span makes up for the rest
    slots = np.sort(np.argsort(body.draw(kept + 1, 1), kind="stable")[:spans])
    pieces, begin = [], 0
    for slot, length, before in zip(slots, lengths, np.cumsum(lengths) - lengths, strict=True):
        start = int(slot + before)  # tokens kept and removed before the span
        pieces += [ids[begin:start], [noise.mask]]
        begin = start + int(length)
    return np.concatenate([*pieces, ids[begin:]]).astype(np.int64), ids


_POISSON = np.cumsum(np.exp(-MEAN_SPAN) * np.cumprod([1.0, *(MEAN_SPAN / n for n in range(1, 16))]))


def sentence_permutation(body: Body, noise: Noise) -> Pair:
    """Shuffle the sentences; the target is the whole row."""
    return _permuted(body.ids, body, noise), body.ids


def _permuted(ids: I64, body: Body, noise: Noise) -> I64:
    ends = np.flatnonzero(np.isin(ids, (*noise.stops, noise.sep))) + 1
    sentences = [part for part in np.split(ids, ends) if len(part)]
    order = np.argsort(body.draw(len(sentences), 3), kind="stable")
    return np.concatenate([sentences[number] for number in order]) if sentences else ids


def document_rotation(body: Body, noise: Noise) -> Pair:
    """Let the row begin at a random token; the target is the whole row."""
    return np.roll(body.ids, -int(body.draw(1)[0] * len(body.ids))), body.ids


def bart(body: Body, noise: Noise) -> Pair:
    """Infill and permute sentences, as BART was pretrained (section 5)."""
    return _permuted(infilling(body, noise)[0], body, noise), body.ids


NOISES: Mapping[str, Callable[[Body, Noise], Pair]] = {
    "prefix-lm": prefix_lm,
    "bert-style": bert_style,
    "deshuffling": deshuffling,
    "mass-style": mass_style,
    "replace-spans": replace_spans,
    "drop-tokens": drop_tokens,
    "random-spans": random_spans,
    "token-masking": mass_style,
    "token-deletion": token_deletion,
    "infilling": infilling,
    "sentence-permutation": sentence_permutation,
    "document-rotation": document_rotation,
    "bart": bart,
}
