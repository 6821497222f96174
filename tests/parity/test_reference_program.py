"""Against the real output of google-research/bert's create_pretraining_data.py: the same kind of
rows, token for token.

The file holds 60 examples of length 128 with at most 20 predictions, made from `sample_text.txt`
with the uncased vocabulary, `dupe_factor` 5, `masked_lm_prob` .15. Its random numbers are Python's,
ours are not, so what is compared is what
does not hang on them: layout, tokenization, the number of masks for a length, and shares.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cloze.core import random_keys
from cloze.pipeline.dataset.config import ExampleConfig
from cloze.pipeline.dataset.masking.candidates import MaskConfig, TokenProperties
from cloze.pipeline.dataset.masking.draw import sample_masks
from cloze.pipeline.dataset.pairings.segments import tokenize
from cloze.pipeline.dataset.pairings.sentence_pairs import RANDOM, next_sentence
from cloze.pipeline.dataset.rows import assemble
from cloze.pipeline.tokenizer import load
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

Example = dict[str, list[float]]
CONFIG = MaskConfig(rate=0.15, max_predictions=20)


def records(path: Path) -> Iterator[bytes]:
    """The records of a TFRecord file: length (8 bytes), its checksum (4), the record, its checksum
    (4).
    """
    content, at = path.read_bytes(), 0
    while at < len(content):
        (size,) = struct.unpack_from("<Q", content, at)
        yield content[at + 12 : at + 12 + size]
        at += 16 + size


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(number, content) of a protobuf message's length-delimited fields."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        assert tag & 7 == 2, "only length-delimited fields occur in these messages"
        size, at = varint(data, at)
        yield tag >> 3, data[at : at + size]
        at += size


def numbers(feature: bytes) -> list[float]:
    """A tf.train.Feature: field 2 is a list of floats, field 3 one of packed integers."""
    [(kind, content)] = fields(feature)
    [(_, packed)] = fields(content)
    if kind == 2:
        return list(struct.unpack(f"<{len(packed) // 4}f", packed))
    found, at = [], 0
    while at < len(packed):
        value, at = varint(packed, at)
        found.append(float(value))
    return found


def parse(record: bytes) -> Example:
    [(_, features)] = fields(record)
    pairs = (dict(fields(entry)) for _, entry in fields(features))
    return {entry[1].decode(): numbers(entry[2]) for entry in pairs}


@pytest.fixture(scope="module")
def directory(shared_data: Path) -> Path:
    path = shared_data / "reference/google-bert"
    if not (path / "tf_examples.tfrecord").exists():
        pytest.skip(f"{path}/tf_examples.tfrecord, the reference program's output, is not here")
    return path


@pytest.fixture(scope="module")
def tokenizer(shared_data: Path) -> Tokenizer:
    return load(str(shared_data / "vocab/bert_base_uncased_vocab.txt"))


class Theirs:
    """One example of the reference program's, cut to its real length, labels restored."""

    def __init__(self, example: Example) -> None:
        real = {name: np.array(values) for name, values in example.items()}
        self.length = int(real["input_mask"].sum())
        self.padding = real["input_ids"][self.length :]
        self.masked_ids = real["input_ids"][: self.length].astype(int)
        self.types = real["segment_ids"].astype(int)
        self.count = int(real["masked_lm_weights"].sum())
        self.positions = real["masked_lm_positions"][: self.count].astype(int)
        self.labels = real["masked_lm_ids"][: self.count].astype(int)
        self.pair_label = int(real["next_sentence_labels"][0])
        self.ids = self.masked_ids.copy()
        self.ids[self.positions] = self.labels


@pytest.fixture(scope="module")
def theirs(directory: Path) -> list[Theirs]:
    return [Theirs(parse(record)) for record in records(directory / "tf_examples.tfrecord")]


@pytest.fixture(scope="module")
def text(directory: Path) -> list[list[str]]:
    """Documents, parted by blank lines, one sentence a line."""
    lines = (directory / "sample_text.txt").read_text(encoding="utf-8").split("\n")
    documents: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            documents[-1].append(line.strip())
        elif documents[-1]:
            documents.append([])
    return [document for document in documents if document]


def test_number_of_masks_follows_from_the_length(theirs):
    assert len(theirs) == 60
    for example in theirs:
        assert example.count == CONFIG.predictions(np.array([example.length]))[0]
        assert example.positions.tolist() == sorted(set(example.positions.tolist()))


def test_layout(theirs, tokenizer):
    special = tokenizer.special
    for example in theirs:
        separators = np.flatnonzero(example.ids == special.sep)
        assert example.ids[0] == special.cls
        assert len(separators) == 2
        assert separators[1] == example.length - 1
        # segment_start is one behind the first [SEP]; token types follow from it; padding is zeros.
        start = separators[0] + 1
        assert example.types[: example.length].tolist() == [0] * start + [1] * (
            example.length - start
        )
        assert not example.types[example.length :].any()
        assert not example.padding.any()
        assert not {0, example.length - 1, int(start) - 1} & set(example.positions.tolist())


def test_their_rows_are_contiguous_pieces_of_our_tokenization(theirs, tokenizer, text):
    streams = ["".join(map(chr, tokenizer.encode_flat(document)[0])) for document in text]
    for example in theirs:
        start = int(np.flatnonzero(example.ids == tokenizer.special.sep)[0]) + 1
        a, b = (
            "".join(map(chr, part)) for part in (example.ids[1 : start - 1], example.ids[start:-1])
        )
        homes_a, homes_b = (
            {i for i, stream in enumerate(streams) if part in stream} for part in (a, b)
        )
        assert homes_a
        assert homes_b
        if example.pair_label == 0:  # B follows A, but for what truncation took between them
            assert any(
                streams[home].find(b, streams[home].find(a) + len(a)) >= 0
                for home in homes_a & homes_b
            )


def test_replacement_shares(theirs, tokenizer):
    now = np.concatenate([example.masked_ids[example.positions] for example in theirs])
    before = np.concatenate([example.labels for example in theirs])
    n = len(now)
    masked, kept = (now == tokenizer.special.mask).mean(), (now == before).mean()
    assert abs(masked - CONFIG.mask_share) < 4 * (0.8 * 0.2 / n) ** 0.5
    assert abs(kept - 0.1) < 4 * (0.1 * 0.9 / n) ** 0.5
    assert abs((1 - masked - kept) - CONFIG.random_share) < 4 * (0.1 * 0.9 / n) ** 0.5


def test_our_rows_of_the_same_text_look_like_theirs(theirs, tokenizer, text):
    """Many seeds of ours against their 60: lengths, pair labels and masks agree within what 60
    examples can tell.
    """
    document_keys = random_keys.fold_in(3, np.arange(len(text)))
    sentences = [sentence for document in text for sentence in document]
    documents = tokenize(
        document_keys,
        sentences,
        np.array([len(document) for document in text]),
        tokenizer,
        "uint16",
    )
    table = TokenProperties(
        size=tokenizer.vocab_size, special=tokenizer.special, word_start=tokenizer.word_start
    )
    lengths, labels, rows = [], [], []
    for seed in range(200):
        segments = next_sentence(
            documents, ExampleConfig(length=128, short_seq_prob=0.1, seed=seed)
        )
        block = assemble(documents, segments, seed, tokenizer.special)
        masks = sample_masks(block.with_keys(seed), CONFIG, table, [0])
        assert np.diff(masks.offsets).tolist() == CONFIG.predictions(block.lengths).tolist()
        lengths += block.lengths.tolist()
        labels += block.pair_label.tolist()
        rows.append(len(block))
    their_lengths = np.array([example.length for example in theirs])
    their_labels = np.array([example.pair_label for example in theirs])
    assert abs(their_lengths.mean() - np.mean(lengths)) < 4 * np.std(lengths) / 60**0.5
    assert abs((their_labels == 1).mean() - (np.array(labels) == RANDOM).mean()) < 4 * 0.5 / 60**0.5
    assert abs(60 / 5 - np.mean(rows)) < 4 * np.std(rows) / 5**0.5 + 0.5  # they made five passes
