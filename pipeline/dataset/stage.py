"""Stage "dataset": a corpus and a tokenizer in, shards of masked examples out.

Beam first cuts every corpus shard into rows (`rows.py`). Then it distributes the rows over shards
by a hash, equal to within one row, and draws their masks (`shards.py`). With the input `append`, a
finished dataset, existing shards are linked, and new shards contain the new documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pydantic import Field

from cloze.core.config import StageConfig
from cloze.core.humanize import format_count
from cloze.core.stages.stage import BuildContext, InputSpec, Stage, StageResult
from cloze.pipeline.dataset.config import COSTS, DatasetConfig, check_disk_space
from cloze.pipeline.dataset.pairings.registry import PAIRINGS

if TYPE_CHECKING:
    from cloze.pipeline.dataset.append import BaseDataset
    from cloze.pipeline.dataset.schema import DatasetInfo
    from cloze.pipeline.tokenizer.tokenizer import Tokenizer

VERSION = 2
FEW_ROWS = 1000  # four of BERT's batches; fewer rows cause a warning


def run(config: DatasetConfig, build: BuildContext) -> StageResult:
    """Build the shards.

    Raises:
        UsageError: `id_type` is too small for the vocabulary, or another version of the stage made
            the dataset to append to.
        DataError: an input is missing or damaged, or there is no new training text.
        ClozeError: the disk cannot hold the shards.
    """
    from cloze.core import storage
    from cloze.core.artifacts.artifact import HELDOUT, SPLITS, TRAIN, shard_name
    from cloze.core.errors import DataError
    from cloze.pipeline.corpus.write.shards import CorpusShards
    from cloze.pipeline.dataset import append, schema
    from cloze.pipeline.dataset.masking.candidates import UNIGRAMS, write_unigrams
    from cloze.pipeline.dataset.merge import bin_borders, count_tokens, open_intermediate_files
    from cloze.pipeline.dataset.rows import BuildRows
    from cloze.pipeline.dataset.shards import WriteDatasetShard, plan
    from cloze.pipeline.dataset.summary import summarize
    from cloze.pipeline.runners.fan_out import fan_out
    from cloze.pipeline.tokenizer import load

    corpus = CorpusShards.open(build.inputs["corpus"])
    base = (
        append.BaseDataset.open(build.inputs["append"], VERSION)
        if "append" in build.inputs
        else None
    )
    tokenizer = load(build.inputs["vocab"], config.lowercase)
    ids = str(schema.id_dtype(tokenizer.vocab_size, config.id_type))
    info = _info(config, tokenizer)
    if base is None:
        tokenizer.save(build.file("tokenizer"))
    else:
        base.check(info)
        base.link_files(build.path)
    masks = config.mask_config()
    part_count, directory = len(corpus.names), storage.join(build.scratch, "parts")
    make_part = BuildRows(
        directory=directory,
        tokenizer=build.file("tokenizer"),
        tokenizer_fingerprint=tokenizer.fingerprint,
        ids=ids,
        pairing=config.pairing,
        pairs=config.pair_config(),
        masks=masks,
    )
    build_rows = append.BuildNewRows(
        make_part=make_part,
        known=base.documents if base else (),
        stamp=base.manifest.fingerprint if base else "",
    )
    units = [
        (f"part-{number:05d}", {"number": number, "path": corpus.file(name)})
        for number, name in enumerate(corpus.names)
    ]
    results = fan_out(
        build,
        "rows",
        units,
        build_rows,
        unit_name="bytes",
        weights=[float(size) for size in corpus.sizes],
    )
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
    document_count = sum(result["documents"] for result in results)
    generation = base.generation if base else 0
    append.write_documents(
        build.file(f"{append.prefix(append.DOCUMENTS, generation)}.arrow"),
        directory,
        part_count,
        document_count,
    )

    counts = build.file(UNIGRAMS) if masks.random_from == "corpus" else None
    if counts is not None and base is None:  # appended rows use the masks of the existing dataset
        write_unigrams(
            counts,
            count_tokens(
                open_intermediate_files(directory, TRAIN, part_count, build.fingerprint),
                tokenizer.vocab_size,
            ),
        )
    make_shard = WriteDatasetShard(
        directory=directory,
        parts=part_count,
        stamp=build.fingerprint,
        info=info,
        ids=ids,
        tokenizer=build.file("tokenizer"),
        masks=masks,
        borders=bin_borders(config.length, config.length_bins),
        compression=None if config.compression == "none" else config.compression,
        unigrams=counts,
    )
    shards: list[tuple[str, dict[str, Any]]] = []
    train_shards = _train_shards(config, base, rows[TRAIN])
    for split, count in ((TRAIN, train_shards), (HELDOUT, 1)):
        for number, ranges in enumerate(plan(make_shard, split, rows[split], count)):
            name = shard_name(append.prefix(split, generation), number, count)
            unit = {
                "split": split,
                "path": build.file(name),
                "ranges": [asdict(shuffle_range) for shuffle_range in ranges],
            }
            shards.append((name.removesuffix(".arrow"), unit))
    weights = [float(sum(key_range["rows"] for key_range in unit["ranges"])) for _, unit in shards]
    check_disk_space(
        build.path,
        directory,
        masks.rate,
        2 if ids == "uint16" else 4,
        config.mask_copies,
        config.compression,
    )
    written = fan_out(build, "shards", shards, make_shard, unit_name="rows", weights=weights)
    return summarize(
        config,
        info,
        build,
        rows=rows,
        documents=document_count,
        known=sum(result["known"] for result in results),
        written=written[:train_shards],
        base=base,
    )


def _info(config: DatasetConfig, tokenizer: Tokenizer) -> DatasetInfo:
    """Return the metadata of every shard."""
    from cloze.pipeline.dataset import schema

    return schema.DatasetInfo(
        recipe=config.recipe,
        length=config.length,
        copies=config.mask_copies,
        vocab_size=tokenizer.vocab_size,
        special=tokenizer.special,
        pair_task=PAIRINGS[config.pairing].task,
        seed=config.seed,
        tokenizer=tokenizer.fingerprint,
        packed=PAIRINGS[config.pairing].packed,
        masks=config.mask_config().as_dict(),
    )


def _train_shards(config: DatasetConfig, base: BaseDataset | None, rows: int) -> int:
    """Return the config's number of shards; for an append, a number that keeps their size."""
    return config.shards if base is None else min(99_999, max(1, round(rows / base.rows_a_shard)))


def headline(summary: Mapping[str, Any]) -> str:
    """Summarise rows, tokens read and shards; warn if there are few rows."""
    text = (
        f"{summary['rows']:,} rows, {format_count(summary['tokens'])} tokens read, "
        f"{summary['shards']} shards"
    )
    if summary["rows"] < FEW_ROWS:
        text += (
            f"; warning: only {summary['rows']:,} rows to train on: see what the corpus dropped, "
            f"or give it more text"
        )
    return text


STAGE = Stage(
    name="dataset",
    version=VERSION,
    config=DatasetConfig,
    run=run,
    inputs={
        "corpus": InputSpec(kinds=("corpus", "semdedup"), required=True),
        "vocab": InputSpec(kinds=("vocab",), required=True),
        "append": InputSpec(kinds=("dataset",), explicit_only=True),
    },
    worker="cloze.pipeline",
    headline=headline,
    cost_model=COSTS,
    comparison_metrics=("rows", "tokens", "padding_share"),
)


# The stage "inspect": a row of a dataset or of a shard as readable text; it writes no files.


class InspectConfig(StageConfig):
    """The row, and its mask copy."""

    row: int = Field(default=0, ge=0)
    """Number of the row in its split, from 0."""

    copy_number: int = Field(default=0, ge=0)
    """Number of the mask copy, from 0."""

    split: str = "train"
    """Split of the row: train or heldout."""


def inspect(config: InspectConfig, build: BuildContext) -> StageResult:
    """Read the row; the summary is a `RowView` as JSON, with the `texts` of the tokens."""
    from cloze.pipeline.dataset.row_view import read_row

    view = read_row(
        build.inputs["dataset"], config.row, split=config.split, copy=config.copy_number
    )
    return StageResult(summary={**view.as_json(), "texts": list(view.texts)})


INSPECT = Stage(
    name="inspect",
    version=1,
    config=InspectConfig,
    run=inspect,
    inputs={"dataset": InputSpec(required=True)},
    worker="cloze.pipeline",
)
