"""The stage heads: statistics of attention heads over rows, and heads as parsers.

Maps are reduced layer by layer, so memory does not grow with the number of layers or rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cloze.core.errors import DataError, UsageError
from cloze.core.ragged import I64
from cloze.core.stages.stage import BuildContext, StageResult
from cloze.labs.inside.attention import AttentionReader
from cloze.labs.inside.head_statistics import (
    KINDS,
    PADDING,
    POSITIONAL,
    HeadStatistics,
    ParsingHeads,
    Sentence,
    TokenRows,
    read_treebank,
)
from cloze.labs.inside.stages import HeadsConfig, cut_notes
from cloze.labs.word_vectors import words_of_tokens
from cloze.model.data.batch import collate
from cloze.model.data.mixture import RowTable
from cloze.model.tasks.encode import CPU_POSITIONS, TextSamples, encode, evaluation_batches, framed
from cloze.model.tasks.files import METRICS_FILE, NOTES, write_json
from cloze.model.train.distributed import World, init_distributed
from cloze.model.train.loop.data import open_dataset
from cloze.model.use.likelihood import read_texts

MAP_BYTES = 1 << 23  # of one layer's maps of a batch, unless a single row has more
COUNT_ROWS = 4096  # rows read at once to count tokens
NEAR = ("-2", "-1", "1", "2")  # offsets of positional heads
BY_HEAD = ("previous", "next", "itself", *KINDS, "rarest", "confidence", "entropy")


class _Maps(list[Tensor]):
    """List of a layout's maps that hands each one to the consumers and keeps none."""

    def __init__(self, *consumers: Any) -> None:
        super().__init__()
        self._consumers = consumers

    def append(self, maps: Tensor) -> None:
        for consumer in self._consumers:
            consumer.layer(maps)


def attend(reader: AttentionReader, rows: TokenRows, *consumers: Any) -> None:
    """Read a batch; call `layer` of each consumer with each layer's maps, in order."""
    real, maps = rows.sequence != PADDING, _Maps(*consumers)
    reader.read(rows.input_ids, rows.token_type_ids, real, maps, rows.layout)


def run(config: HeadsConfig, build: BuildContext) -> StageResult:
    """Measure the heads over texts, a dataset's rows or a treebank's sentences.

    Raises:
        UsageError: there is nothing to read, or the dataset does not fit the checkpoint.
        DataError: an input is missing or damaged, or a treebank no CoNLL-U.
    """
    world = init_distributed(build.execution)
    reader = AttentionReader(build.inputs["checkpoint"], world.device)
    if (config.max_length or 0) > reader.longest:
        raise UsageError(
            f"max_length ({config.max_length}) is more than {reader.path} reads "
            f"({reader.longest}); use {reader.longest} or less"
        )
    longest, pieces = config.max_length or reader.longest, reader.pieces
    sentences = read_treebank(config.treebank) if config.treebank else []
    source: _TextRows | _DatasetRows
    notes = list[str]()
    if config.texts is None and "dataset" in build.inputs:
        source = _DatasetRows(build.inputs["dataset"], config.rows, reader, world)
    else:
        texts = [sentence.text for sentence in sentences]
        if config.texts is not None:
            texts = [text.text for text in read_texts(config.texts)]
            if not texts:
                raise DataError(f"{config.texts} has no texts; write one per line")
        if not texts:
            raise UsageError(
                "heads needs rows (found none); name a dataset with --dataset, a file of texts "
                "with --texts, or a CoNLL-U file with --treebank"
            )
        samples = encode(texts[: config.rows], None, pieces, longest)
        notes, source = cut_notes(samples, longest), _TextRows(samples, world.device)
    size = 4 * reader.heads
    statistics = HeadStatistics(pieces, source.frequency(pieces.vocab_size).to(world.device))
    done, total = 0, len(source)
    build.report.progress(0, total, "rows", {})
    for rows in source.batches(size):
        statistics.begin(rows)
        attend(reader, rows, statistics)
        done += len(rows.input_ids)
        build.report.progress(done, total, "rows", {})
    heads = statistics.result()
    metrics = _metrics(heads)
    by_head = {name: heads[name] for name in BY_HEAD}
    summary = {"metrics": metrics, "heads": sum(map(len, heads["entropy"])), "by_head": by_head}
    summary[NOTES] = notes
    content = {"rows": total, "heads": heads}
    if sentences:
        relations, skipped = _parse(reader, sentences, longest, size, world.device)
        metrics |= _parsing_metrics(relations)
        parsing = {"relations": relations, "skipped_sentences": skipped}
        summary |= parsing
        content |= parsing
    write_json(build.file(METRICS_FILE), {"metrics": metrics, **content})
    build.counters["read/rows"] += total
    return StageResult(rows=total, summary=summary)


class _TextRows:
    """Texts as batches of padded rows of similar length."""

    def __init__(self, samples: TextSamples, device: torch.device) -> None:
        self._samples, self._device = samples, device

    def __len__(self) -> int:
        return len(self._samples)

    def frequency(self, size: int) -> Tensor:
        """Count the occurrences of each token, int64 [size]."""
        return torch.bincount(
            torch.from_numpy(np.concatenate(self._samples.sequences)).long(), minlength=size
        )

    def batches(self, bytes_per_pair: int) -> Iterator[TokenRows]:
        """Iterate over the batches; `bytes_per_pair`: bytes of the maps per pair of tokens."""
        return map(self.batch, self.groups(bytes_per_pair))

    def groups(self, bytes_per_pair: int) -> list[I64]:
        """Return the numbers of the samples of each batch, longest first."""
        lengths = self._samples.lengths
        return evaluation_batches(lengths, _positions(int(lengths.max()), bytes_per_pair))

    def batch(self, indices: I64) -> TokenRows:
        batch = self._samples.batch(indices)
        real = batch["attention_mask"]
        sequence = torch.arange(len(indices))[:, None].where(real, PADDING)
        return TokenRows(
            input_ids=batch["input_ids"].to(self._device),
            token_type_ids=batch["token_type_ids"].to(self._device),
            sequence=sequence.to(self._device),
        )


class _DatasetRows:
    """The first held-out rows of a dataset, or training rows if none are held out; no masks."""

    def __init__(self, path: str, rows: int, reader: AttentionReader, world: World) -> None:
        data = open_dataset(path, False, world)
        if data.info.tokenizer != reader.pieces.fingerprint:
            raise UsageError(
                f"{path} was made with another tokenizer than {reader.path}; name the dataset of "
                f"its training"
            )
        self._info, self._device = data.info, world.device
        self._shards: RowTable = data.heldout if len(data.heldout) else data.train
        self._count = min(rows, len(self._shards))

    def __len__(self) -> int:
        return self._count

    def frequency(self, size: int) -> Tensor:
        """Count the occurrences of each token, int64 [size]."""
        counts = np.zeros(size, np.int64)
        for begin in range(0, self._count, COUNT_ROWS):
            rows = np.arange(begin, min(begin + COUNT_ROWS, self._count))
            ids = self._shards.take(rows, np.zeros_like(rows)).ids
            counts += np.bincount(ids, minlength=size)
        return torch.from_numpy(counts)

    def batches(self, bytes_per_pair: int) -> Iterator[TokenRows]:
        size = max(1, _positions(self._info.length, bytes_per_pair) // self._info.length)
        for begin in range(0, self._count, size):
            numbers = np.arange(begin, min(begin + size, self._count))
            rows = self._shards.take(numbers, np.zeros_like(numbers))
            rows = rows.without_masks(np.ones(len(numbers), np.bool_))
            batch = collate(rows, pad=self._info.special.pad, longest=self._info.length)
            real = batch["attention_mask"]
            first = torch.zeros_like(real)
            first[:, 0] = True
            first = batch.get("sequence_first", first)
            sequence = (first.flatten().cumsum(0).view_as(first) - 1).where(real, PADDING)
            layout = batch.get("layout")
            yield TokenRows(
                input_ids=batch["input_ids"].to(self._device),
                token_type_ids=batch["token_type_ids"].to(self._device),
                sequence=sequence.to(self._device),
                layout=None if layout is None else layout.to(self._device),
            )


def _positions(longest: int, bytes_per_pair: int) -> int:
    """Return the tokens of a batch whose maps have at most `MAP_BYTES`, of rows up to `longest`."""
    # Short rows are limited by their tokens, whose states need memory, too.
    return min(MAP_BYTES // (bytes_per_pair * longest), CPU_POSITIONS)


def _parse(
    reader: AttentionReader,
    sentences: Sequence[Sentence],
    longest: int,
    size: int,
    device: torch.device,
) -> tuple[list[dict[str, Any]], int]:
    """Return the best heads by relation, and the number of sentences that are too long."""
    pieces = reader.pieces
    encoded = pieces.encode_with_offsets([sentence.text for sentence in sentences])
    fitting = [number for number, (ids, _) in enumerate(encoded) if len(ids) + 2 <= longest]
    if not fitting:
        raise DataError(f"all sentences have more than {longest} tokens; give shorter ones")
    chosen = [sentences[number] for number in fitting]
    words = []
    for sentence, number in zip(chosen, fitting, strict=True):
        own = words_of_tokens(sentence.spans.tolist(), encoded[number][1])
        around = (len(pieces.special.begins), 1)
        words.append(np.pad(own, around, constant_values=-1))  # special tokens are no words
    framed_rows = framed([encoded[number][0] for number in fitting], None, pieces, longest)
    rows = _TextRows(framed_rows, device)
    parsing = ParsingHeads(chosen)
    for indices in rows.groups(size):
        batch = rows.batch(indices)
        own_words = [words[number] for number in indices]
        parsing.begin(indices.tolist(), own_words, batch.input_ids.shape[1])
        attend(reader, batch, parsing)
    if not (relations := parsing.result()):
        raise DataError("no word of the treebank has a head; give sentences with dependencies")
    return relations, len(sentences) - len(fitting)


def _metrics(heads: dict[str, Any]) -> dict[str, float]:
    """Return the numbers by which runs are compared: the largest head of each kind, and counts."""
    metrics = {
        f"largest_{name}": max(
            (value for layer in heads[name] for value in layer if value is not None), default=0.0
        )
        for name in BY_HEAD
        if name != "entropy"
    }
    entropies = [value for layer in heads["entropy"] for value in layer]
    mean_entropy = float(np.mean(entropies))
    return {**metrics, "positional_heads": positional_heads(heads), "mean_entropy": mean_entropy}


def positional_heads(heads: dict[str, Any]) -> int:
    """Count the heads whose maximum is at one near offset for `POSITIONAL` of the tokens."""
    count = 0
    for layer, values in enumerate(heads["entropy"]):
        for head in range(len(values)):
            shares = [heads["maximum_at"][offset][layer][head] or 0.0 for offset in NEAR]
            count += max(shares) >= POSITIONAL
    return count


def _parsing_metrics(parsing: Sequence[dict[str, Any]]) -> dict[str, float]:
    total, *relations = parsing  # the first one has all
    above = sum(row["accuracy"] > row["offset_accuracy"] for row in relations)
    return {
        "relations": len(relations),
        "relations_above_offset": above,
        "dependencies": total["accuracy"],
        "dependencies_by_offset": total["offset_accuracy"],
    }
