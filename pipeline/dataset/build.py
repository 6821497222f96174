"""The two Beam steps of stage "dataset", and the summary of their counts.

Each step runs one unit per file that it writes or reads:

    rows      corpus shard -> sorted intermediate files (`rows.py`)
    shards    range of shuffle keys -> shard with masks (`merge.py`, `shards.py`)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pyarrow as pa

from cloze.core import storage
from cloze.core.arrow import write_arrow
from cloze.core.artifacts.artifact import HELDOUT, SPLITS, TRAIN, shard_name
from cloze.core.errors import DataError
from cloze.core.stages.stage import BuildContext, StageResult
from cloze.pipeline.corpus.write.shards import CorpusShards, in_split, read_shard, texts
from cloze.pipeline.dataset import append
from cloze.pipeline.dataset.append import BaseDataset
from cloze.pipeline.dataset.config import DatasetConfig, ExampleConfig, check_disk_space
from cloze.pipeline.dataset.masking.candidates import UNIGRAMS, TokenProperties, write_unigrams
from cloze.pipeline.dataset.masking.draw import text_lengths
from cloze.pipeline.dataset.merge import count_tokens, open_intermediate_files
from cloze.pipeline.dataset.pairings.registry import PAIRINGS, label_names
from cloze.pipeline.dataset.pairings.segments import Segments, TokenizedDocuments, tokenize
from cloze.pipeline.dataset.rows import RowBlock, assemble, part_path
from cloze.pipeline.dataset.schema import DatasetInfo, id_dtype
from cloze.pipeline.dataset.shards import WriteDatasetShard, plan, sum_counts
from cloze.pipeline.runners.fan_out import fan_out
from cloze.pipeline.tokenizer import load
from cloze.pipeline.tokenizer.tokenizer import Tokenizer, shared_tokenizer

MOST_SHARDS = 99_999
# prefix of the counters of text tokens: read, in_rows, and reasons for the others
TOKENS = "tokens/"
# of these: tokens in rows a second time, as another document's random next segment
AGAIN = "random_next"
CAPPED = "masks/capped_rows"
CAPPED_SHARE = 0.01  # share of rows that may lose predictions to the maximum without a warning


def build_dataset(config: DatasetConfig, build: BuildContext, version: int) -> StageResult:
    """Build the shards; `version`: current version of the stage. See `stage.run`."""
    corpus = CorpusShards.open(build.inputs["corpus"])
    base = None
    if "append" in build.inputs:
        base = BaseDataset.open(build.inputs["append"], version)
    tokenizer = load(build.inputs["vocab"], config.lowercase)
    info = _dataset_info(config, tokenizer)
    if base is None:
        tokenizer.save(build.file("tokenizer"))
    else:
        base.check(info)
        base.link_files(build.path)
    directory = storage.join(build.scratch, "parts")
    results = _build_rows(config, build, corpus, directory, tokenizer, base)
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
    append.write_documents(keys_file, directory, len(corpus.names), documents)
    unigrams = build.file(UNIGRAMS) if config.random_from == "corpus" else None
    if unigrams is not None and base is None:  # else the counts of the existing dataset
        row_files = open_intermediate_files(directory, TRAIN, len(results), build.fingerprint)
        write_unigrams(unigrams, count_tokens(row_files, tokenizer.vocab_size))
    write_shard = WriteDatasetShard(
        directory=directory,
        parts=len(corpus.names),
        stamp=build.fingerprint,
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
        for number, ranges in enumerate(plan(write_shard, split, rows[split], count)):
            name = shard_name(append.prefix(split, generation), number, count)
            unit = {"split": split, "path": build.file(name), "ranges": list(map(asdict, ranges))}
            units.append((name.removesuffix(".arrow"), unit))
    weights = [float(sum(key_range["rows"] for key_range in unit["ranges"])) for _, unit in units]
    check_disk_space(build.path, directory, config, id_dtype(tokenizer.vocab_size).itemsize)
    written = fan_out(build, "shards", units, write_shard, unit_name="rows", weights=weights)
    new = _new_counts(info, rows, written[:train_shards], documents, build.counters)
    known = sum(result["known"] for result in results)
    new["words"] = None if known else corpus.words
    return _summarize(config, info, build, new, base, known)


def _dataset_info(config: DatasetConfig, tokenizer: Tokenizer) -> DatasetInfo:
    """Return the metadata of every shard."""
    pairing = PAIRINGS[config.pairing]
    return DatasetInfo(
        recipe=config.recipe,
        length=config.length,
        copies=config.mask_copies,
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
) -> list[dict[str, Any]]:
    """Write the intermediate files; count their text, and return the result of each corpus shard.

    Results are those of `BuildRows`.
    """
    build_rows = BuildRows(
        directory=directory,
        tokenizer=build.file("tokenizer"),
        tokenizer_fingerprint=tokenizer.fingerprint,
        config=config,
        known=base.documents if base else (),
        stamp=base.manifest.fingerprint if base else "",
    )
    units = [
        (f"part-{number:05d}", {"number": number, "path": corpus.file(name)})
        for number, name in enumerate(corpus.names)
    ]
    weights = [float(size) for size in corpus.sizes]
    results = fan_out(build, "rows", units, build_rows, unit_name="bytes", weights=weights)
    for result in results:
        for split in SPLITS:
            build.counters.update(result[split]["counters"])
    return results


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRows:
    """Corpus shard -> a sorted intermediate file per split, and a file of its documents' keys.

    A unit is {"number": index of the shard, "path": corpus shard}. The result has rows and counters
    of the text by split, and the numbers of new documents (`documents`) and of omitted ones
    (`known`).

    Attributes:
        directory: directory of the intermediate files.
        tokenizer: directory that `Tokenizer.save` wrote.
        tokenizer_fingerprint: fingerprint of the tokenizer.
        config: pairing, masks and seed.
        known: files of the keys of documents to omit.
        stamp: fingerprint of the dataset that these files belong to.
    """

    directory: str
    tokenizer: str
    tokenizer_fingerprint: str
    config: ExampleConfig
    known: tuple[str, ...] = ()
    stamp: str = ""

    def __call__(self, unit: dict[str, Any]) -> dict[str, Any]:
        table = read_shard(unit["path"])
        keys = table["key"].to_numpy()
        is_known = append.known(keys, self.known, self.stamp)
        append.write_keys(append.keys_path(self.directory, unit["number"]), keys[~is_known])
        if is_known.any():
            table = table.filter(pa.array(~is_known))
        result = {split: self._write(table, split, unit["number"]) for split in SPLITS}
        return {**result, "documents": table.num_rows, "known": int(is_known.sum())}

    def _write(self, table: pa.Table, split: str, number: int) -> dict[str, Any]:
        """Write the intermediate file of a split; return its rows and counters."""
        tokenizer = shared_tokenizer(self.tokenizer, self.tokenizer_fingerprint)
        text = texts(table, in_split(table, split))
        documents = tokenize(
            text.keys, text.sentences, text.counts, tokenizer, id_dtype(tokenizer.vocab_size)
        )
        pairing = resolve_name(PAIRINGS[self.config.pairing].function)
        segments: Segments = pairing(documents, self.config)
        block = assemble(documents, segments, self.config.seed, tokenizer.special)
        batch = block.to_arrow()
        write_arrow(part_path(self.directory, split, number), batch.schema, [batch])
        counters = _counters(documents, segments)
        counters[CAPPED] = _count_capped(block, self.config, TokenProperties.of(tokenizer))
        return {"rows": len(block), "counters": counters}


def _counters(documents: TokenizedDocuments, segments: Segments) -> dict[str, int]:
    """Count the part's tokens: read = in_rows + truncated; rows also contain random_next."""
    return {
        "read/documents": len(documents),
        "read/sentences": len(documents.sentence_index),
        "dropped/empty_document": documents.empty_documents,
        "dropped/empty_sentence": documents.empty_sentences,
        "tokens/read": len(documents.tokens),
        "tokens/in_rows": int(segments.lengths.sum() - segments.random_next_tokens.sum()),
        "tokens/truncated": int(segments.truncated.sum()),
        "tokens/random_next": int(segments.random_next_tokens.sum()),
        "rows/single_segment": int((np.diff(segments.range_offsets) == 1).sum()),
        "rows/sequences": len(segments.lengths),
    }


def _count_capped(block: RowBlock, config: ExampleConfig, tokens: TokenProperties) -> int:
    """Count the rows whose masks `max_predictions` limits in at least one copy."""
    masks = config.mask_config()
    if masks.rule == "none":
        return 0
    text = text_lengths(block.with_keys(config.seed), tokens)
    targets = masks.target_count(block.lengths, text, np.nextafter(1, 0))
    return int((targets > masks.max_predictions).sum())


# The summary of the training split. Held-out rows, documents and text tokens cover both splits.


def _new_counts(
    info: DatasetInfo,
    rows: Mapping[str, int],
    written: Sequence[Mapping[str, Any]],
    documents: int,
    counters: Mapping[str, int],
) -> dict[str, Any]:
    """Return the summary's counts of the new shards.

    Args:
        info: metadata of every shard.
        rows: number of new rows by split.
        written: results of `WriteDatasetShard` for the training split.
        documents: number of new documents, of both splits.
        counters: counters of the new text.
    """
    total = sum_counts(written)
    label_counts = zip((*label_names(info.pair_task), "none"), total["labels"], strict=True)
    return {
        "rows": rows[TRAIN],
        "heldout_rows": rows[HELDOUT],
        "tokens": counters[f"{TOKENS}read"],
        "row_tokens": total["row_tokens"],
        "masked": total["masked"],
        "shards": len(written),
        "documents": documents,
        "pair_labels": dict(label_counts),
        "length_histogram": total["histogram"],
    }


def _summarize(
    config: ExampleConfig,
    info: DatasetInfo,
    build: BuildContext,
    new: dict[str, Any],
    base: BaseDataset | None,
    known: int,
) -> StageResult:
    """Return the result of the stage, and report its warnings.

    Args:
        config: requested examples.
        info: metadata of every shard.
        build: has the counters of the new shards; those of `base` are added.
        new: counts of the new shards.
        base: dataset that was appended to, or None.
        known: number of the corpus's documents that were already in `base`.
    """
    total: dict[str, Any] = new
    appended: dict[str, Any] = {}
    if base is not None:
        names = ("rows", "heldout_rows", "tokens", "shards", "documents")
        appended = {"appended": {name: new[name] for name in names}}
        total = append.add_counts(base.manifest.summary, new)
        build.counters["dropped/already_in_dataset"] += known
        build.counters.update(base.manifest.counters)
    row_count, row_tokens = max(1, total["rows"]), max(1, total["row_tokens"])
    summary = {
        **total,
        "copies": info.copies,
        "length": info.length,
        "masked_share": round(total["masked"] / (info.copies * row_tokens), 6),
        "mean_length": round(total["row_tokens"] / row_count, 3),
        "padding_share": round(1 - total["row_tokens"] / (row_count * info.length), 6),
        "vocab_size": info.vocab_size,
        **token_shares(build.counters),
        "words_per_token": _words_per_token(total, build.counters),
        **appended,
        "warnings": warnings(config, build.counters, total["rows"] + total["heldout_rows"]),
    }
    for warning in summary["warnings"]:
        build.report.progress(row_count, row_count, "rows", {"step": "shards", "warning": warning})
    return StageResult(rows=total["rows"], tokens=total["tokens"], summary=summary)


def _words_per_token(total: Mapping[str, Any], counters: Mapping[str, int]) -> float | None:
    """Return the mean words per token of a row, special tokens included; None: unknown."""
    rows = total["rows"] + total["heldout_rows"]
    text_tokens = (counters[f"{TOKENS}in_rows"] + counters[TOKENS + AGAIN]) / rows
    if total["words"] is None:
        return None
    words = total["words"] / counters[f"{TOKENS}read"] * text_tokens
    share: float = words * total["rows"] / total["row_tokens"]
    return round(share, 6)


def token_shares(counters: Mapping[str, int]) -> dict[str, Any]:
    """Return the shares of the text tokens: `tokens_in_rows_share` and `tokens_by_reason`.

    The reasons add up to the tokens read; `tokens_used_again` come in addition.
    """
    read = counters.get(f"{TOKENS}read", 0)
    counts = {
        name.removeprefix(TOKENS): count
        for name, count in counters.items()
        if name.startswith(TOKENS)
    }
    counts.pop("read", None)
    reused = counts.pop(AGAIN, 0)
    shares = {
        name: {"tokens": count, "share": round(count / read, 6) if read else 0.0}
        for name, count in sorted(counts.items())
    }
    in_rows = shares.get("in_rows", {}).get("share", 0.0)
    return {
        "tokens_in_rows_share": in_rows,
        "tokens_by_reason": shares,
        "tokens_used_again": reused,
    }


def warnings(config: ExampleConfig, counters: Mapping[str, int], rows: int) -> list[str]:
    """Return warnings about probably unintended settings and their results."""
    messages = config.warnings()
    capped = counters.get(CAPPED, 0)
    if capped > CAPPED_SHARE * rows and not any(
        "max_predictions" in warning for warning in messages
    ):
        messages.append(
            f"max_predictions ({config.max_predictions}) cuts the masks of {capped:,} of {rows:,} "
            f"rows below mask_rate ({config.mask_rate:g}); leave it out, or set a larger one"
        )
    return messages
