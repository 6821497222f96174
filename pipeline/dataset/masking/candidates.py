"""Input and output of masking: its config, token properties, rows, candidates and selections.

Shards store the config, so that dynamic masks are drawn like the stored ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import ValidationError

from cloze.core import random_keys as random
from cloze.core.arrow import read_arrow, write_arrow
from cloze.core.errors import DataError
from cloze.core.options import Options, compose_config_class, known, options_class
from cloze.core.ragged import I64
from cloze.core.random_keys import U64
from cloze.pipeline.dataset.masking.registry import RULES, MaskFields
from cloze.pipeline.tokenizer.special import SpecialTokens

if TYPE_CHECKING:
    from cloze.pipeline.tokenizer.tokenizer import Tokenizer

    _RuleOptions = Options
else:
    _RuleOptions = compose_config_class(
        "RuleOptions", Options, (rule.options for rule in RULES.loaded().values())
    )

# Rule options that every shard stores; others are stored only for their own rule.
ALWAYS_STORED = {"max_ngram", "span_p", "max_span"}
STORED_ROUNDING = "budget"  # key of `mask_rounding` in a shard


class MaskConfig(_RuleOptions, MaskFields):
    """The share and the kind of masks, with the options of every rule."""

    rule: Annotated[str, known(RULES, "unknown masking rule")] = "token"
    """Masking rule."""
    rate: float = 0.15
    """Share of a row's tokens to predict; `mask_rounding` says which tokens count."""

    def as_dict(self) -> dict[str, Any]:
        """Return the values that a shard's schema stores; `from_dict` reads them."""
        options = RULES[self.rule].options
        rule_options = set(options_class(options).model_fields) if options else set()
        stored = {"rule", "rate", *MaskFields.model_fields, *ALWAYS_STORED, *rule_options}
        values = {name: value for name, value in self.model_dump().items() if name in stored}
        values[STORED_ROUNDING] = values.pop("mask_rounding")
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> MaskConfig:
        """Read the values that `as_dict` returned.

        Raises:
            DataError: an unknown option, or a value with which no mask can be drawn.
        """
        values = dict(values)
        if STORED_ROUNDING in values:
            values["mask_rounding"] = values.pop(STORED_ROUNDING)
        unknown = sorted(set(values) - set(cls.model_fields))
        if unknown:
            raise DataError(
                f"the dataset's masks were drawn with {unknown[0]!r}, which this program does not "
                f"know; use a newer one"
            )
        try:
            return cls(**values)
        except ValidationError as error:
            fault = error.errors()[0]
            field, value = ".".join(map(str, fault["loc"])), fault["input"]
            message = str(fault["msg"]).removeprefix("Value error, ")
            raise DataError(
                f"the dataset's masks cannot be drawn again: {field} (found {value!r}): {message}; "
                f"make the dataset again"
            ) from error

    def target_count(
        self, lengths: npt.ArrayLike, text: npt.ArrayLike, u: npt.ArrayLike = 0.5
    ) -> I64:
        """Return the target masks per row, before the maximum: int64 of the broadcast shape.

        Args:
            lengths: tokens of the rows, special tokens included.
            text: tokens of the rows that are not special.
            u: uniform numbers in [0, 1), for `probabilistic`.
        """
        lengths, text, u = np.asarray(lengths), np.asarray(text), np.asarray(u, np.float64)
        if self.mask_rounding == "probabilistic":
            # The mean over many rows is the rate exactly, without a bias by rounding.
            return np.asarray(np.floor(self.rate * lengths + u), np.int64)
        if self.mask_rounding == "ceil":
            return np.asarray(np.ceil(text * self.rate + 0.0 * u), np.int64)
        return np.asarray(np.maximum(np.rint(lengths * self.rate + 0.0 * u), 1), np.int64)

    def predictions(
        self, lengths: npt.ArrayLike, text: npt.ArrayLike | None = None, u: npt.ArrayLike = 0.5
    ) -> I64:
        """Return `target_count`, limited to `max_predictions`.

        For BERT: min(cap, max(1, round(rate · length))): 4 for 30 tokens, 16 for 110.
        """
        return np.minimum(
            self.target_count(lengths, lengths if text is None else text, u), self.max_predictions
        )


# Token counts of a dataset's training rows, a file of the artifact, for `random_from: corpus`.

UNIGRAMS = "unigrams.arrow"
SCHEMA = pa.schema([pa.field("count", pa.int64(), nullable=False)])


def write_unigrams(path: str, counts: I64) -> None:
    """Write the counts, int64 [V], in the order of ids."""
    write_arrow(path, SCHEMA, [pa.RecordBatch.from_arrays([pa.array(counts)], schema=SCHEMA)])


def read_unigrams(path: str) -> I64:
    """Read the counts: int64 [V]."""
    counts: I64 = read_arrow(path)["count"].to_numpy()
    return counts


# Rows, candidates and selections.

Bools = npt.NDArray[np.bool_]


# A row's place in its document: its first sentence, and from this bit on its drawing. The first
# drawing's places are the sentences themselves.
DRAWING_BIT = 42
SENTENCES = (1 << DRAWING_BIT) - 1  # bits of the sentence


def row_keys(seed: int, document: npt.ArrayLike, place: npt.ArrayLike) -> U64:
    """Return the random key of each row, from a shard's `source`: uint64 of the broadcast shape.

    Args:
        document: keys of the documents.
        place: offset + (drawing << DRAWING_BIT), unique among the document's rows.
    """
    return random.fold_in(seed, document, place)


@dataclass(frozen=True, kw_only=True)
class TokenProperties:
    """The token properties that masking needs."""

    size: int  # V
    special: SpecialTokens  # ids of the special tokens
    word_start: Bools  # bool [V], tokens that start a word
    # int64 [V], token counts of the training text; only for `random_from: corpus`
    unigrams: I64 | None = None

    @classmethod
    def of(cls, tokenizer: Tokenizer, unigrams: I64 | None = None) -> TokenProperties:
        return cls(
            size=tokenizer.vocab_size,
            special=tokenizer.special,
            word_start=tokenizer.word_start,
            unigrams=unigrams,
        )

    @cached_property
    def ordinary(self) -> Bools:
        """The ids that are not special: bool [V]."""
        is_ordinary = np.ones(self.size, np.bool_)
        is_ordinary[list(self.special.ids)] = False
        return is_ordinary

    @cached_property
    def ordinary_ids(self) -> I64:
        """The ids that are not special, ascending."""
        return np.flatnonzero(self.ordinary)

    @cached_property
    def cumulative(self) -> I64:
        """Running totals of `unigrams` without special tokens: int64 [V].

        Raises:
            ValueError: there are no counts, or all are zero.
        """
        if self.unigrams is None or len(self.unigrams) != self.size:
            raise ValueError(
                "random_from is corpus, but the token counts of the corpus are missing; read "
                "unigrams.arrow"
            )
        total = np.cumsum(np.where(self.ordinary, self.unigrams, 0), dtype=np.int64)
        if total[-1] <= 0:
            raise ValueError(
                "random_from is corpus, but the corpus has no tokens; use random_from vocabulary"
            )
        return total


class EncodedText(NamedTuple):
    """S sentences of D documents as a masking rule's marker sees them."""

    keys: U64  # [D]
    counts: I64  # [D], sentences of each document
    sentences: Sequence[str]
    follows_space: npt.NDArray[np.bool_]  # [S], encoded with a space before them
    offsets: I64  # [S + 1], first token of each sentence
    tokenizer: Tokenizer


Marker = Callable[[EncodedText], npt.NDArray[np.uint8]]  # returns a mark of each token, uint8 [T]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmaskedRows:
    """A ragged batch of unmasked rows."""

    keys: U64  # uint64 [R], from `row_keys`
    input_ids: npt.NDArray[Any]  # [T], all rows concatenated, special tokens included, no padding
    offsets: I64  # int64 [R + 1], start of each row in `input_ids`, and T
    # int [R], start of segment B in its row; the row's length if there is no B
    segment_start: npt.NDArray[Any]
    # uint8 [T], marks of the tokens that the rule draws from; None: it has none
    marks: npt.NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def slice(self, first: int, end: int) -> UnmaskedRows:
        """Return the rows first to end, without copying the ids."""
        offsets = self.offsets[first : end + 1]
        return UnmaskedRows(
            keys=self.keys[first:end],
            input_ids=self.input_ids[offsets[0] : offsets[-1]],
            offsets=offsets - offsets[0],
            segment_start=self.segment_start[first:end],
            marks=None if self.marks is None else self.marks[offsets[0] : offsets[-1]],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskCandidates:
    """The tokens of a batch that a rule may choose: all but special tokens."""

    rows: UnmaskedRows
    table: TokenProperties  # token properties
    config: MaskConfig  # config of the masks
    index: I64  # int64 [C], ascending indices into `rows.input_ids`
    offsets: I64  # int64 [R + 1], start of each row's candidates in `index`

    @classmethod
    def of(
        cls, rows: UnmaskedRows, table: TokenProperties, config: MaskConfig | None = None
    ) -> MaskCandidates:
        # All rows at once: a candidate is an index into the concatenated ids.
        index = np.flatnonzero(table.ordinary[rows.input_ids])
        offsets = np.searchsorted(index, rows.offsets)
        return cls(
            rows=rows, table=table, config=config or MaskConfig(), index=index, offsets=offsets
        )

    @property
    def counts(self) -> I64:
        """Candidates in each row: int64 [R]."""
        return np.diff(self.offsets)

    def opens_run(self) -> Bools:
        """Return which candidates directly follow no candidate, such as a row's first: bool [C]."""
        opens = np.ones(len(self.index), np.bool_)
        opens[1:] = np.diff(self.index) != 1
        return opens

    def opens_word(self, opens_run: Bools | None = None) -> Bools:
        """Return which candidates start a word: bool [C].

        A `##x` right after a special token starts a word, too: a segment truncated at the front
        begins inside a word. This rest is not part of the previous segment's last word (a bug in
        google-research/bert's whole-word masking).

        Args:
            opens_run: result of `opens_run()`, if already computed.
        """
        tokens = self.rows.input_ids.take(self.index)
        opens: Bools = self.table.word_start.take(tokens) | (
            self.opens_run() if opens_run is None else opens_run
        )
        return opens


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskSelection:
    """The tokens that a rule chose for each (row, copy), ordered by row, then copy."""

    # int64 [M] into `MaskCandidates.index`, ascending and unique within each (row, copy)
    index: I64
    counts: I64  # int64 [R * K], chosen tokens of each (row, copy)
    # int64 [M], a position in the row shared by all tokens of a unit (such as the first of a span);
    # they get the same kind of replacement. None: each token is a unit.
    unit: I64 | None = None


# (candidates, budget int64 [R, K], keys uint64 [R, K]) -> selection. A budget never exceeds the
# row's candidates. A rule derives its random numbers from `splitmix64(key ^ splitmix64(n))` with n
# below `RULE_STREAMS`; higher n belong to `draw.py`.
Rule = Callable[[MaskCandidates, I64, U64], MaskSelection]
RULE_STREAMS = 1 << 30
