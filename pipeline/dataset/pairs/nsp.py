"""Next sentence prediction: rows as google-research/bert's create_pretraining_data.py makes them.

Rules of `create_instances_from_document` there: sentences are gathered until they reach the target length; a random
number of them, at least one, is segment A; then B is what follows (label 0), or with probability one half text of
another document from a random sentence on (label 1), and what followed A is put back for the next row. A chunk of one
sentence has nothing that follows and always takes a random B, so that a little more than half of all labels are 1.

Where this differs, on purpose: B never comes from the same document (that program gives up after ten tries); the
other document is of the same corpus shard and the same split; where there is no other one, rows have what follows,
and a chunk of one sentence is a row of one segment without a label.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import Field

from pipeline.core.options import Options

if TYPE_CHECKING:
    from pipeline.core import random_keys
    from pipeline.dataset.pairs.segments import PairConfig, Segments
    from pipeline.dataset.tokenized_documents import TokenizedDocuments

NEXT, RANDOM = 0, 1


class NspOptions(Options):
    """What can be set of the pairings `nsp` and `segment-pair`."""

    random_next_prob: float = Field(default=0.5, ge=0, le=1)
    """Of the pairings `nsp` and `segment-pair`: how often B is a random text, where there is something that follows (BERT: .5)."""


def next_sentence(documents: TokenizedDocuments, config: PairConfig) -> Segments:
    """Rows with next-sentence labels. Every sentence of every document is in exactly one row's own text."""
    import numpy as np

    from pipeline.dataset.pairs.segments import Segments, sentence_keys, truncate_pairs

    row_key = sentence_keys(documents, config.seed)
    rows = np.array(_chunks(documents, config, row_key), np.int64).reshape(-1, 5)
    a_first, a_last, b_first, b_last, label = rows.T
    borders = documents.sentence_offsets
    starts = np.stack([borders[a_first], borders[b_first]], axis=1)
    lengths = np.stack([borders[a_last], borders[b_last]], axis=1) - starts
    cut_starts, cut_lengths = truncate_pairs(starts, lengths, config.max_tokens, row_key[a_first])
    random = label == RANDOM
    own = np.stack([np.ones_like(random), ~random], axis=1)
    return Segments.of_pairs(
        document=documents.sentence_document[a_first],
        offset=documents.sentence_index[a_first],
        starts=cut_starts,
        lengths=cut_lengths,
        pair_label=label.astype(np.int8),
        truncated=((lengths - cut_lengths) * own).sum(axis=1),
        foreign=np.where(random, cut_lengths[:, 1], 0),
    )


def segment_pairs(documents: TokenizedDocuments, config: PairConfig) -> Segments:
    """The same rows without labels: what a model without the pair task reads of them.

    Devlin et al. 2019, table 5, "No NSP", which by Liu et al. 2019, section 4.2, kept the two segments and took away the loss.
    """
    import numpy as np

    from pipeline.dataset.pairs.segments import NO_LABEL

    segments = next_sentence(documents, config)
    return replace(segments, pair_label=np.full(len(segments), NO_LABEL, np.int8))


def _chunks(
    documents: TokenizedDocuments, config: PairConfig, row_key: random_keys.U64
) -> list[tuple[int, int, int, int, int]]:
    """Every row as sentence ranges and label: (A first, A end, B first, B end, label).

    The only loop over rows, in plain numbers, because each row begins where the one before it ended; all random
    numbers that a row may need are drawn beforehand, from the key of the sentence that it begins with.
    """
    from pipeline.core.random_keys import derive, uniform
    from pipeline.dataset.pairs.segments import NO_LABEL, USE_COIN, USE_DOCUMENT, USE_MIDDLE, USE_START, target_lengths

    assert isinstance(config, NspOptions)
    middle, coin, which, where = (
        uniform(derive(row_key, use)).tolist() for use in (USE_MIDDLE, USE_COIN, USE_DOCUMENT, USE_START)
    )
    borders = documents.sentence_offsets.tolist()
    documents_at = documents.document_offsets.tolist()
    targets = target_lengths(documents, config, config.max_tokens).tolist()
    others = len(documents) - 1
    rows = []
    for number, target in enumerate(targets):
        first, end = documents_at[number], documents_at[number + 1]
        while first < end:
            chunk_end = bisect_left(borders, borders[first] + target, first + 1, end)
            followers = chunk_end - first - 1
            a_end = first + 1 + int(middle[first] * followers)
            if others and (not followers or coin[first] < config.random_next_prob):
                other = int(which[first] * others)
                other += other >= number
                other_first, other_end = documents_at[other], documents_at[other + 1]
                b_first = other_first + int(where[first] * (other_end - other_first))
                wanted = borders[b_first] + target - (borders[a_end] - borders[first])
                b_end = bisect_left(borders, wanted, b_first + 1, other_end)
                rows.append((first, a_end, b_first, b_end, RANDOM))
                first = a_end  # what followed A is put back
            else:
                rows.append((first, a_end, a_end, chunk_end, NEXT if followers else NO_LABEL))
                first = chunk_end
    return rows
