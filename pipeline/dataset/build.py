"""The two Beam steps of stage "dataset".

Each step runs one unit per file that it writes or reads:

    rows      corpus shard -> sorted intermediate files (`rows.py`)
    shards    range of shuffle keys -> shard with masks (`merge.py`, `shards.py`)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pyarrow as pa

from cloze.core import storage
from cloze.core.arrow import read_arrow
from cloze.core.artifacts.artifact import HELDOUT, SPLITS, TRAIN, shard_name
from cloze.core.errors import DataError
from cloze.core.stages.stage import BuildContext, StageResult
from cloze.pipeline.corpus.write.shards import CorpusShards, in_split, read_shard, texts
from cloze.pipeline.dataset import append
from cloze.pipeline.dataset.append import BaseDataset
from cloze.pipeline.dataset.config import DatasetConfig, ExampleConfig, check_disk_space
from cloze.pipeline.dataset.masking.candidates import UNIGRAMS, TokenProperties, write_unigrams
from cloze.pipeline.dataset.masking.draw import text_lengths
from cloze.pipeline.dataset.masking.salient import (
    SALIENT_RULE,
    check_entities,
    spans_by_sentence,
    spans_file_name,
)
from cloze.pipeline.dataset.merge import bin_borders, bucket_count, count_tokens, write_part
from cloze.pipeline.dataset.pairings.registry import PAIRINGS
from cloze.pipeline.dataset.pairings.segments import Segments, TokenizedDocuments, tokenize
from cloze.pipeline.dataset.rows import RowBlock, assemble, part_path, part_schema
from cloze.pipeline.dataset.schema import DatasetInfo, id_dtype
from cloze.pipeline.dataset.shards import WriteDatasetShard, plan_units
from cloze.pipeline.dataset.summary import CAPPED, TRUNCATED, new_counts, summarize
from cloze.pipeline.runners.fan_out import fan_out
from cloze.pipeline.tokenizer import load
from cloze.pipeline.tokenizer.loading import shared_tokenizer
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

MOST_SHARDS = 99_999
# in a store: text of an intermediate file, and number of files if the text suffices for it
PART_BYTES, LEAST_PARTS = 64 << 20, 32
COPIED_BYTES = 1 << 30  # up to which a machine fetches the intermediate files whole, once
BYTES_PER_TOKEN = 3  # of any language: it only has to be about right
HELDOUT_SHARE = 32  # training buckets per held-out bucket


def build_dataset(config: DatasetConfig, build: BuildContext, version: int) -> StageResult:
    """Build the shards; `version`: current version of the stage. See `stage.run`."""
    corpus = CorpusShards.open(build.inputs["corpus"])
    base = None
    if "append" in build.inputs:
        base = BaseDataset.open(build.inputs["append"], version)
    check_entities(config.masking, build.inputs)
    tokenizer = load(build.inputs["vocab"], config.lowercase)
    info = _dataset_info(config, tokenizer)
    if base is None:
        tokenizer.save(build.file("tokenizer"))
    else:
        base.check(info, bin_borders(config.length, config.length_bins))
        base.link_files(build.path)
    directory = storage.join(build.scratch, "parts")
    groups = _part_groups(corpus, is_local=storage.is_local(build.path))
    tokens = sum(corpus.sizes) / BYTES_PER_TOKEN
    tokens *= config.drawings
    buckets = bucket_count(tokens, config.length, len(groups), config.shards)
    results = _build_rows(config, build, corpus, directory, tokenizer, base, groups, buckets)
    rows = {split: sum(result[split]["rows"] for result in results) for split in SPLITS}
    if not rows[TRAIN]:
        suffix = f" that {base.path} lacks" if base else ""
        raise DataError(
            f"{corpus.path} gives no rows{suffix} for the split {TRAIN}; give `cloze corpus` more "
            f"text"
        )
    documents = sum(result["documents"] for result in results)
    generation = base.generation if base else 0
    keys_file = build.file(f"{append.prefix(append.DOCUMENTS, generation)}.arrow")
    append.write_documents(keys_file, directory, len(groups), documents)
    unigrams = build.file(UNIGRAMS) if config.random_from == "corpus" else None
    if unigrams is not None and base is None:  # else the counts of the existing dataset
        salient = config.masking == SALIENT_RULE
        schema = part_schema(tokenizer.vocab_size, packed=info.packed, salient=salient)
        paths = [part_path(directory, TRAIN, number) for number in range(len(groups))]
        counts = count_tokens(paths, schema, tokenizer.vocab_size)
        write_unigrams(unigrams, counts)
    part_bytes = sum(result[split]["offsets"][-1] for result in results for split in SPLITS)
    write_shard = WriteDatasetShard(
        directory=directory,
        stamp=build.fingerprint,
        ranged=not storage.is_local(directory) and part_bytes > COPIED_BYTES,
        info=info,
        tokenizer=build.file("tokenizer"),
        config=config,
        unigrams=unigrams,
    )
    train_shards = config.shards
    if base is not None:  # keep the size of the shards
        train_shards = min(MOST_SHARDS, max(1, round(rows[TRAIN] / base.rows_a_shard)))
    units: list[tuple[str, dict[str, Any]]] = []
    for split, count in ((TRAIN, train_shards), (HELDOUT, 1)):
        shard_units = plan_units(split, [result[split] for result in results], count)
        for number, unit in enumerate(shard_units):
            name = shard_name(append.prefix(split, generation), number, count)
            units.append((name.removesuffix(".arrow"), {**unit, "path": build.file(name)}))
    weights = [float(sum(key_range["rows"] for key_range in unit["ranges"])) for _, unit in units]
    id_bytes = id_dtype(tokenizer.vocab_size).itemsize
    check_disk_space(build.path, [unit["path"] for _, unit in units], directory, config, id_bytes)
    written = fan_out(build, "shards", units, write_shard, unit_name="rows", weights=weights)
    new = new_counts(info, rows, written[:train_shards], documents, build.counters)
    known = sum(result["known"] for result in results)
    new["words"] = None if known else corpus.words
    return summarize(config, info, build, new, base, known)


def _dataset_info(config: DatasetConfig, tokenizer: Tokenizer) -> DatasetInfo:
    """Return the metadata of every shard."""
    pairing = PAIRINGS[config.pairing]
    return DatasetInfo(
        recipe=config.recipe,
        length=config.length,
        copies=config.mask_copies,
        drawings=config.drawings,
        vocab_size=tokenizer.vocab_size,
        special=tokenizer.special,
        pair_task=pairing.task,
        seed=config.seed,
        tokenizer=tokenizer.fingerprint,
        packed=pairing.packed,
        masks=config.mask_config().as_dict(),
    )


def _build_rows(
    config: DatasetConfig,
    build: BuildContext,
    corpus: CorpusShards,
    directory: str,
    tokenizer: Tokenizer,
    base: BaseDataset | None,
    groups: list[list[int]],
    buckets: int,
) -> list[dict[str, Any]]:
    """Write the intermediate files and count their text; return the results of `BuildRows`.

    Args:
        groups: for each intermediate file the indices of its corpus shards.
        buckets: number of buckets of the key space.
    """
    build_rows = BuildRows(
        directory=directory,
        tokenizer=build.file("tokenizer"),
        tokenizer_fingerprint=tokenizer.fingerprint,
        config=config,
        buckets=buckets,
        borders=bin_borders(config.length, config.length_bins),
        known=base.documents if base else (),
        stamp=base.manifest.fingerprint if base else "",
        entities=build.inputs.get("entities"),
    )
    units = [
        (
            f"bucketed-{number:05d}",
            {"number": number, "paths": [corpus.file(corpus.names[index]) for index in group]},
        )
        for number, group in enumerate(groups)
    ]
    weights = [float(sum(corpus.sizes[index] for index in group)) for group in groups]
    results = fan_out(build, "rows", units, build_rows, unit_name="bytes", weights=weights)
    for result in results:
        for split in SPLITS:
            build.counters.update(result[split]["counters"])
    return results


def _part_groups(corpus: CorpusShards, *, is_local: bool) -> list[list[int]]:
    """Return for each intermediate file the indices of its corpus shards.

    On a disk each shard has a file. In a store every shard of the dataset fetches a range of every
    file, so they are fewer and larger; there are enough for `LEAST_PARTS` workers.
    """
    most = 0 if is_local else min(PART_BYTES, sum(corpus.sizes) // LEAST_PARTS)
    groups: list[list[int]] = []
    filled = 0
    for index, size in enumerate(corpus.sizes):
        if groups and filled + size <= most:
            groups[-1].append(index)
        else:
            groups.append([index])
            filled = 0
        filled += size
    return groups


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRows:
    """Corpus shards -> a sorted intermediate file per split, and a file of their documents' keys.

    A unit is {"number": index of the file, "paths": corpus shards}. The result has by split what
    `write_part` returns and counters of the text, and the numbers of new documents (`documents`)
    and of omitted ones (`known`).

    Attributes:
        directory: directory of the intermediate files.
        tokenizer: directory that `Tokenizer.save` wrote.
        tokenizer_fingerprint: fingerprint of the tokenizer.
        config: pairing, masks and seed.
        buckets: number of buckets of the training split; the held-out split has fewer.
        borders: maximum row length of each length bin.
        known: files of the keys of documents to omit.
        stamp: fingerprint of the dataset that these files belong to.
        entities: artifact with the salient spans of the corpus.
    """

    directory: str
    tokenizer: str
    tokenizer_fingerprint: str
    config: ExampleConfig
    buckets: int = 1
    borders: tuple[int, ...] = (1 << 16,)
    known: tuple[str, ...] = ()
    stamp: str = ""
    entities: str | None = None

    def __call__(self, unit: dict[str, Any]) -> dict[str, Any]:
        new_keys, known, blocks = [], 0, defaultdict(list)
        counters: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for path in unit["paths"]:
            table = read_shard(path)
            keys = table["key"].to_numpy()
            is_known = append.known(keys, self.known, self.stamp)
            if is_known.any():
                table, known = table.filter(pa.array(~is_known)), known + int(is_known.sum())
            new_keys.append(keys[~is_known])
            salient = None
            if self.entities is not None:
                salient = read_arrow(storage.join(self.entities, spans_file_name(path)))
            for split in SPLITS:
                block, counts = self._rows(table, split, salient)
                blocks[split].append(block)
                counters[split].update(counts)
        documents = np.concatenate(new_keys)
        append.write_keys(append.keys_path(self.directory, unit["number"]), documents)
        result = {
            split: self._write(blocks.pop(split), split, unit["number"])
            | {"counters": counters[split]}
            for split in SPLITS
        }
        return {**result, "documents": len(documents), "known": known}

    def _write(self, blocks: list[RowBlock], split: str, number: int) -> dict[str, Any]:
        """Write the rows of some corpus shards in ascending order of the shuffle key."""
        block = blocks[0]
        if len(blocks) > 1:
            block = RowBlock.concatenate(blocks)
            block = block.take(np.argsort(block.rank, kind="stable"))
        buckets = self.buckets if split == TRAIN else -(-self.buckets // HELDOUT_SHARE)
        path = part_path(self.directory, split, number)
        return write_part(path, block, buckets, self.borders, self.config.drawings)

    def _rows(
        self, table: pa.Table, split: str, salient: pa.Table | None
    ) -> tuple[RowBlock, dict[str, int]]:
        """Return the rows of a split of a corpus shard, sorted, and their counters."""
        tokenizer = shared_tokenizer(self.tokenizer, self.tokenizer_fingerprint)
        text = texts(table, in_split(table, split))
        documents = tokenize(
            text.keys,
            text.sentences,
            text.counts,
            tokenizer,
            id_dtype(tokenizer.vocab_size),
            None if salient is None else spans_by_sentence(salient, text.keys, text.counts),
        )
        pairing = resolve_name(PAIRINGS[self.config.pairing].function)
        count = self.config.drawings if split == TRAIN else 1  # held-out text is read once
        drawings = [pairing(documents.draw(number), self.config) for number in range(count)]
        given = (self.config.seed, tokenizer.special, count)
        block = RowBlock.concatenate([assemble(documents, rows, *given) for rows in drawings])
        counters = _counters(documents, drawings)
        counters[CAPPED] = _count_capped(block, self.config, TokenProperties.of(tokenizer))
        return block, counters


def _counters(documents: TokenizedDocuments, drawings: list[Segments]) -> dict[str, int]:
    """Count the part's tokens: read = in_rows (of any drawing) + truncated; rows repeat some."""
    starts = np.concatenate([segments.starts for segments in drawings])
    lengths = np.concatenate([segments.lengths for segments in drawings])
    read, sizes = len(documents.tokens), [np.diff(rows.range_offsets) for rows in drawings]
    begins, ends = (np.bincount(place, minlength=read + 1) for place in (starts, starts + lengths))
    in_rows = int(np.count_nonzero(np.cumsum(begins - ends)))
    return {
        "read/documents": len(documents),
        "read/sentences": len(documents.sentence_index),
        "dropped/empty_document": documents.empty_documents,
        "dropped/empty_sentence": documents.empty_sentences,
        "tokens/read": read,
        "tokens/in_rows": in_rows,
        TRUNCATED: read - in_rows,
        "tokens/again": int(lengths.sum()) - in_rows,
        "rows/single_segment": int(sum((ranges == 1).sum() for ranges in sizes)),
        "rows/sequences": len(lengths),
    }


def _count_capped(block: RowBlock, config: ExampleConfig, tokens: TokenProperties) -> int:
    """Count the rows whose masks `max_predictions` limits in at least one copy."""
    masks = config.mask_config()
    if masks.rule in ("none", SALIENT_RULE):
        return 0
    text = text_lengths(block.with_keys(config.seed), tokens)
    targets = masks.target_count(block.lengths, text, np.nextafter(1, 0))
    return int((targets > masks.max_predictions).sum())
