"""Stage "dataset": a corpus and a tokenizer in, shards of examples with their masks out.

First every corpus shard is cut into rows, then the rows are spread over shards by a hash, equal to within one row, and
their masks drawn. Both steps are fanned out by Beam; `pipeline.dataset.row_parts` and `shards` hold what they do.
With the input `append`, a finished dataset, its shards are taken over as they are, and new ones hold what it lacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pipeline.core.humanize import si
from pipeline.core.stage import Build, Input, Outcome, Stage
from pipeline.dataset.config import DatasetConfig
from pipeline.dataset.cost import COSTS
from pipeline.dataset.pairs.table import PAIRINGS

if TYPE_CHECKING:
    from pipeline.dataset.append import Base
    from pipeline.dataset.schema import DatasetInfo
    from pipeline.tokenizer.tokenizer import Tokenizer

VERSION = 2


def run(config: DatasetConfig, build: Build) -> Outcome:
    """Make the shards.

    Raises:
        UsageError: ids of `id_type` cannot hold the vocabulary, or what is appended to was made by another version.
        DataError: the corpus, the tokenizer or what is appended to is missing or damaged, or there is no new training text.
        ClozeError: the disk cannot hold the shards.
    """
    from pipeline.core import storage
    from pipeline.core.errors import DataError
    from pipeline.core.shards import HELDOUT, SPLITS, TRAIN, shard_name
    from pipeline.corpus.shards import CorpusShards
    from pipeline.dataset import append, disk, document_keys, schema
    from pipeline.dataset.masking.unigrams import UNIGRAMS, write_unigrams
    from pipeline.dataset.merge import count_pieces, open_parts
    from pipeline.dataset.ranks import bin_borders
    from pipeline.dataset.row_parts import MakePart
    from pipeline.dataset.shards import MakeShard, plan
    from pipeline.dataset.summary import Summary
    from pipeline.engines.fan_out import fan_out
    from pipeline.tokenizer import load

    corpus = CorpusShards.open(build.inputs["corpus"])
    base = append.Base.open(build.inputs["append"], VERSION) if "append" in build.inputs else None
    tokenizer = load(build.inputs["vocab"], config.lowercase)
    ids = str(schema.id_dtype(tokenizer.vocab_size, config.id_type))
    info = _info(config, tokenizer)
    if base is None:
        tokenizer.save(build.file("tokenizer"))
    else:
        base.check(info)
        base.take_over(build.path)
    masks = config.mask_config()
    parts, directory = len(corpus.names), storage.join(build.scratch, "parts")
    make_part = MakePart(
        directory=directory,
        tokenizer=build.file("tokenizer"),
        tokenizer_fingerprint=tokenizer.fingerprint,
        ids=ids,
        pairing=config.pairing,
        pairs=config.pair_config(),
        masks=masks,
    )
    make = document_keys.MakeNewPart(
        make_part=make_part, known=base.documents if base else (), stamp=base.manifest.fingerprint if base else ""
    )
    units = [(f"part-{number:05d}", {"number": number, "path": corpus.file(name)}) for number, name in enumerate(corpus.names)]
    made = fan_out(build, "rows", units, make, unit_name="bytes", weights=[float(size) for size in corpus.sizes])
    for result in made:
        for split in SPLITS:
            build.counters.update(result[split]["counters"])
    rows = {split: sum(result[split]["rows"] for result in made) for split in SPLITS}
    if not rows[TRAIN]:
        lacks = f" that {base.path} lacks" if base else ""
        raise DataError(f"{corpus.path} gives no rows{lacks} for the split {TRAIN}; give `cloze corpus` more text")
    documents_made = sum(result["documents"] for result in made)
    generation = base.generation if base else 0
    document_keys.write_documents(
        build.file(f"{append.prefix(document_keys.DOCUMENTS, generation)}.arrow"), directory, parts, documents_made
    )

    counts = build.file(UNIGRAMS) if masks.random_from == "corpus" else None
    if counts is not None and base is None:  # what is appended is masked like what is there
        write_unigrams(counts, count_pieces(open_parts(directory, TRAIN, parts, build.fingerprint), tokenizer.vocab_size))
    make_shard = MakeShard(
        directory=directory,
        parts=parts,
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
            unit = {"split": split, "path": build.file(name), "ranges": [asdict(found) for found in ranges]}
            shards.append((name.removesuffix(".arrow"), unit))
    weights = [float(sum(found["rows"] for found in unit["ranges"])) for _, unit in shards]
    disk.check(build.path, directory, masks.rate, 2 if ids == "uint16" else 4, config.copies, config.compression)
    written = fan_out(build, "shards", shards, make_shard, unit_name="rows", weights=weights)
    summary = Summary(config=config, info=info, rows=rows, documents=documents_made, shards=train_shards)
    known = sum(result["known"] for result in made)
    return summary.outcome(build, written[:train_shards], base, known)


def _info(config: DatasetConfig, tokenizer: Tokenizer) -> DatasetInfo:
    """What every shard says of itself."""
    from pipeline.dataset import schema

    return schema.DatasetInfo(
        recipe=config.recipe,
        length=config.length,
        copies=config.copies,
        vocab_size=tokenizer.vocab_size,
        special=tokenizer.special,
        pair_task=PAIRINGS[config.pairing].task,
        seed=config.seed,
        tokenizer=tokenizer.fingerprint,
        packed=PAIRINGS[config.pairing].packed,
        masks=config.mask_config().as_dict(),
    )


def _train_shards(config: DatasetConfig, base: Base | None, rows: int) -> int:
    """The config's shards, or as many new ones as keep the size of those that are there."""
    return config.shards if base is None else min(99_999, max(1, round(rows / base.rows_a_shard)))


def headline(summary: Mapping[str, Any]) -> str:
    """Rows, pieces of text read, and shards."""
    return f"{summary['rows']:,} rows, {si(summary['tokens'])} tokens read, {summary['shards']} shards"


STAGE = Stage(
    name="dataset",
    version=VERSION,
    config=DatasetConfig,
    run=run,
    inputs={
        "corpus": Input(kinds=("corpus", "semdedup"), required=True),
        "vocab": Input(kinds=("vocab",), required=True),
        "append": Input(kinds=("dataset",), named=True),
    },
    worker="pipeline",
    headline=headline,
    costs=COSTS,
    compared=("rows", "tokens", "padding_share"),
)
