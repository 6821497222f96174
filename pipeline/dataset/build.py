"""The two Beam steps of stage "dataset".

An exchange (`pipeline/runners/exchange.py`) lies between them, held-out rows after the others:

    rows      corpus shards -> a run of rows sorted by shuffle key (`rows.py`)
    shards    range of shuffle keys -> shard with masks (`ranges.py`, `shards.py`)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pyarrow as pa

from cloze.core import storage
from cloze.core.artifacts import artifact, fingerprints
from cloze.core.artifacts.artifact import HELDOUT, SPLITS, TRAIN, shard_name
from cloze.core.errors import DataError, UsageError
from cloze.core.ragged import I64
from cloze.core.random_keys import U64
from cloze.core.stages.stage import BuildContext, StageResult
from cloze.pipeline.corpus.files.shards import CorpusShards, in_split, read_shard, texts
from cloze.pipeline.dataset import append
from cloze.pipeline.dataset.append import BaseDataset
from cloze.pipeline.dataset.config import DatasetConfig, ExampleConfig, check_disk_space
from cloze.pipeline.dataset.masking.candidates import (
    DRAWING_BIT,
    UNIGRAMS,
    Marker,
    TokenProperties,
    write_unigrams,
)
from cloze.pipeline.dataset.masking.draw import text_lengths
from cloze.pipeline.dataset.masking.registry import RULES, rule_marks
from cloze.pipeline.dataset.pairings.registry import PAIRINGS
from cloze.pipeline.dataset.pairings.segments import Segments, TokenizedDocuments, tokenize
from cloze.pipeline.dataset.ranges import bin_borders, bucket_count, row_places
from cloze.pipeline.dataset.rows import RowBlock, assemble
from cloze.pipeline.dataset.schema import DatasetInfo, id_dtype
from cloze.pipeline.dataset.shards import WriteDatasetShard, plan_units
from cloze.pipeline.dataset.summary import CAPPED, DIFFERING, TRUNCATED, new_counts, summarize
from cloze.pipeline.runners.exchange import Exchange
from cloze.pipeline.runners.fan_out import fan_out
from cloze.pipeline.tokenizer import load
from cloze.pipeline.tokenizer.loading import shared_tokenizer
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

MOST_SHARDS = 99_999
LEAST_RUN_BYTES = 1 << 20  # of text; tokenizing it takes longer than writing the files
BYTES_PER_TOKEN = 3  # of any language: it only has to be about right
HELDOUT_SHARE = 32  # training buckets per held-out bucket


def build_dataset(config: DatasetConfig, build: BuildContext, version: int) -> StageResult:
    """Build the shards; `version`: current version of the stage. See `stage.run`."""
    corpus = CorpusShards.open(build.inputs["corpus"])
    base = BaseDataset.open(build.inputs["append"], version) if "append" in build.inputs else None
    _check_marks(config.masking, build.inputs)
    tokenizer = load(build.inputs["vocab"], config.lowercase)
    info = _dataset_info(config, tokenizer)
    if base is None:
        tokenizer.save(build.file("tokenizer"))
    else:
        base.check(info, bin_borders(config.length, config.length_bins))
        for entry in base.manifest.files:
            fingerprints.link_unchanged(base.path, entry, build.file(entry.path))

    groups = corpus.groups(build.scratch, LEAST_RUN_BYTES)
    build_rows = _rows_step(config, build, corpus, tokenizer, len(groups), base)
    units = [(group.name, {"number": n, "paths": group.paths}) for n, group in enumerate(groups)]
    sizes = [group.size for group in groups]
    results = fan_out(build, "rows", units, build_rows, unit_name="bytes", weights=sizes)
    for result in results:
        for split in SPLITS:
            build.counters.update(result[split]["counters"])
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
    build_rows.keys.connect(build, f"connect-{append.DOCUMENTS}")
    append.write_documents(keys_file, build_rows.keys, documents)

    unigrams = build.file(UNIGRAMS) if config.random_from == "corpus" else None
    if unigrams is not None and base is None:  # else the counts of the existing dataset
        paths = [_counts_path(build_rows.directory, number) for number in range(len(groups))]
        counts = sum(np.frombuffer(storage.read_at_once(path), np.int64) for path in paths)
        write_unigrams(unigrams, np.asarray(counts))
    write_shard = WriteDatasetShard(
        runs=build_rows.runs,
        info=info,
        tokenizer=build_rows.tokenizer,
        config=config,
        unigrams=unigrams,
    )
    train_shards = config.shards
    if base is not None:  # keep the size of the shards
        train_shards = min(MOST_SHARDS, max(1, round(rows[TRAIN] / base.rows_a_shard)))
    shards = _shard_units(build, build_rows, results, {TRAIN: train_shards, HELDOUT: 1}, generation)
    row_counts = [float(sum(part["rows"] for part in unit["ranges"])) for _, unit in shards]
    id_bytes = id_dtype(tokenizer.vocab_size).itemsize
    row_bytes = sum(result["bytes"] for result in results)
    check_disk_space(build.path, [unit["path"] for _, unit in shards], row_bytes, config, id_bytes)
    written = fan_out(build, "shards", shards, write_shard, unit_name="rows", weights=row_counts)

    new = new_counts(info, rows, written[:train_shards], documents, build.counters)
    known = sum(result["known"] for result in results)
    # A corpus counts the words of all its documents; those of the new ones alone are not known.
    new["words"] = None if known else corpus.words
    return summarize(config, info, build, new, base, known)


def _rows_step(
    config: DatasetConfig,
    build: BuildContext,
    corpus: CorpusShards,
    tokenizer: Tokenizer,
    runs: int,
    base: BaseDataset | None,
) -> BuildRows:
    """Return the first step, with an exchange that has room for so many runs."""
    borders = bin_borders(config.length, config.length_bins)
    tokens = sum(corpus.sizes) / BYTES_PER_TOKEN * config.drawings
    train = bucket_count(tokens, config.length, runs * len(borders), config.shards)
    buckets = {TRAIN: train, HELDOUT: -(-train // HELDOUT_SHARE)}
    directory = storage.join(build.scratch, "parts")
    marks = RULES[config.masking].marks
    return BuildRows(
        directory=directory,
        runs=Exchange(
            directory=storage.join(directory, "rows"),
            runs=runs,
            places=sum(buckets.values()) * len(borders),
        ),
        keys=append.key_exchange(directory, runs, corpus.documents),
        buckets=buckets,
        tokenizer=build.file("tokenizer"),
        tokenizer_fingerprint=tokenizer.fingerprint,
        config=config,
        borders=borders,
        known=base.documents if base else (),
        stamp=base.manifest.fingerprint if base else "",
        marked=None if marks is None else build.inputs[marks.role],
    )


def _shard_units(
    build: BuildContext,
    step: BuildRows,
    results: Sequence[Mapping[str, Any]],
    shard_counts: Mapping[str, int],
    generation: int,
) -> list[tuple[str, dict[str, Any]]]:
    """Connect the runs that `step` wrote; return the units of both splits' shards, training first.

    Args:
        results: results of `step`, one per run.
        shard_counts: number of shards of each split.
    """
    bins, first = len(step.borders), 0
    found = step.runs.connect(build, "connect-rows").reshape(-1, bins).T
    units = []
    for split in SPLITS:
        end, count = first + step.buckets[split], shard_counts[split]
        drawn = np.sum([result[split]["drawings"] for result in results], axis=0)
        for number, unit in enumerate(plan_units(found[:, first:end], drawn, count, first)):
            name = shard_name(append.prefix(split, generation), number, count)
            units.append((name.removesuffix(".arrow"), {**unit, "path": build.file(name)}))
        first = end
    return units


def _check_marks(rule: str, inputs: Mapping[str, Any]) -> None:
    """Check that the rule has what its marks are made of, of this corpus, and no other rule's.

    Raises:
        UsageError: that input is missing, of another corpus, or not read.
    """
    for marks in rule_marks():
        path, needed = inputs.get(marks.role), marks == RULES[rule].marks
        if needed != (path is not None):
            found = f"found {path}" if path is not None else f"found none; {marks.help}"
            raise UsageError(f"masking ({rule}) and {marks.role} must come together ({found})")
        corpus = fingerprints.input_fingerprint(inputs["corpus"])
        if path is not None and artifact.read_manifest(path).parents.get("corpus") != corpus:
            raise UsageError(f"{marks.role} ({path}) is of another corpus than {inputs['corpus']}")


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


def _counts_path(directory: str, number: int) -> str:
    """Return the file of the counts of tokens in the training rows of a run, int64 [V]."""
    return storage.join(directory, f"counts-{number:05d}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRows:
    """Corpus shards -> a run of rows, and one of their documents' keys.

    A unit is {"number": of the run, "paths": corpus shards}. The result has by split the number of
    `rows`, their number by bin and drawing (`drawings`), and counters of the text; and `bytes` of
    the run, the numbers of new documents (`documents`) and of omitted ones (`known`).
    """

    directory: str  # directory of the counts of tokens
    # exchange of the rows: the buckets of the splits in turn, a place is a length bin
    runs: Exchange
    keys: Exchange  # exchange of the documents' keys
    buckets: Mapping[str, int]  # number of buckets of each split
    tokenizer: str  # directory that `Tokenizer.save` wrote
    tokenizer_fingerprint: str  # fingerprint of the tokenizer
    config: ExampleConfig  # pairing, masks and seed
    borders: tuple[int, ...] = (1 << 16,)  # maximum row length of each length bin
    known: tuple[str, ...] = ()  # files of the keys of documents to omit
    stamp: str = ""  # fingerprint of the dataset that these files belong to
    marked: str | None = None  # artifact that the masking rule's marks are made of

    def __call__(self, unit: dict[str, Any]) -> dict[str, Any]:
        new_keys: list[U64] = []
        documents = known = 0
        counters: defaultdict[str, Counter[str]] = defaultdict(Counter)
        bins, drawings = len(self.borders), self.config.drawings
        cells = {split: np.zeros(bins * drawings, np.int64) for split in SPLITS}
        first_place = {TRAIN: 0, HELDOUT: self.buckets[TRAIN] * bins}
        vocab_size = shared_tokenizer(self.tokenizer, self.tokenizer_fingerprint).vocab_size
        tokens = np.zeros(vocab_size, np.int64)

        def placed() -> Iterator[tuple[pa.Table, I64]]:
            nonlocal documents, known
            for path in unit["paths"]:
                table = read_shard(path)
                keys = table["key"].to_numpy()
                is_known = append.known(keys, self.known, self.stamp)
                if is_known.any():
                    table, known = table.filter(pa.array(~is_known)), known + int(is_known.sum())
                new_keys.append(keys[~is_known])
                documents += table.num_rows
                marks = RULES[self.config.masking].marks
                mark = None
                if marks is not None and self.marked is not None:
                    mark = resolve_name(marks.function)(self.marked, path)
                for split in SPLITS:
                    block, counts = self._rows(table, split, mark)
                    counters[split].update(counts)
                    places = row_places(block, self.buckets[split], self.borders)
                    drawn = places % bins * drawings + (block.offset >> DRAWING_BIT)
                    cells[split] += np.bincount(drawn, minlength=bins * drawings)
                    if split == TRAIN and self.config.random_from == "corpus":
                        np.add(tokens, np.bincount(block.ids.values, minlength=vocab_size), tokens)
                    yield pa.Table.from_batches([block.to_arrow()]), places + first_place[split]

        size = self.runs.write(unit["number"], placed())
        if self.config.random_from == "corpus":
            storage.write_bytes(_counts_path(self.directory, unit["number"]), tokens.tobytes())
        append.write_keys(self.keys, unit["number"], np.concatenate(new_keys))
        return {
            **{
                split: {
                    "rows": int(cells[split].sum()),
                    "drawings": cells[split].reshape(bins, drawings).tolist(),
                    "counters": counters[split],
                }
                for split in SPLITS
            },
            "bytes": size,
            "documents": documents,
            "known": known,
        }

    def _rows(
        self, table: pa.Table, split: str, mark: Marker | None
    ) -> tuple[RowBlock, dict[str, int]]:
        """Return the rows of a split of a corpus shard, sorted, and their counters."""
        tokenizer = shared_tokenizer(self.tokenizer, self.tokenizer_fingerprint)
        text, differing = texts(table, in_split(table, split)), tokenizer.differing_texts
        documents = tokenize(
            text.keys, text.sentences, text.counts, tokenizer, id_dtype(tokenizer.vocab_size), mark
        )
        pairing = resolve_name(PAIRINGS[self.config.pairing].function)
        count = self.config.drawings if split == TRAIN else 1  # held-out text is read once
        drawings = [pairing(documents.draw(number), self.config) for number in range(count)]
        given = (self.config.seed, tokenizer.special, count)
        block = RowBlock.concatenate([assemble(documents, rows, *given) for rows in drawings])
        counters = _counters(documents, drawings)
        if differing := tokenizer.differing_texts - differing:
            counters[DIFFERING] = differing
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
    if masks.rule == "none" or RULES[masks.rule].marks is not None:  # no budget
        return 0
    text = text_lengths(block.with_keys(config.seed), tokens)
    targets = masks.target_count(block.lengths, text, np.nextafter(1, 0))
    return int((targets > masks.max_predictions).sum())
