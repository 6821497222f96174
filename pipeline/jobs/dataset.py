"""Stage "dataset": a corpus and a tokenizer in, shards of examples with their masks out.

First every corpus shard is cut into rows, then the rows are spread over shards by a hash, equal to within one row, and
their masks drawn. Both steps are fanned out by Beam; `pipeline.transforms.parts` and `shards` hold what they do.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any, Literal

from pydantic import Field

from pipeline.examples.config import ExampleConfig
from pipeline.examples.pairs import PAIRINGS
from pipeline.stage import Build, Outcome, Stage

VERSION = 1


class DatasetConfig(ExampleConfig):
    """Examples, and how they are stored.

    Attributes:
        shards: files of the training split.
        id_type: auto takes uint16 where the vocabulary allows it.
    """

    shards: int = Field(default=4, ge=1, le=99_999)
    id_type: Literal["auto", "uint16", "uint32"] = "auto"


def run(config: DatasetConfig, build: Build) -> Outcome:
    """Make the shards.

    Raises:
        UsageError: ids of `id_type` cannot hold the vocabulary.
        DataError: the corpus or the tokenizer is missing or damaged, or the corpus has no training text.
    """
    from pipeline import schema, storage
    from pipeline.errors import DataError
    from pipeline.tokenizer import load
    from pipeline.transforms import ranks
    from pipeline.transforms.corpus_shards import CorpusShards
    from pipeline.transforms.parts import MakePart
    from pipeline.transforms.runner import fan_out
    from pipeline.transforms.shards import MakeShard, count_buckets

    corpus = CorpusShards.open(build.inputs["corpus"])
    tokenizer = load(build.inputs["vocab"], config.lowercase)
    ids = str(schema.id_dtype(tokenizer.vocab_size, config.id_type))
    tokenizer.save(build.file("tokenizer"))
    parts, directory = len(corpus.names), storage.join(build.scratch, "parts")
    make_part = MakePart(
        directory=directory,
        tokenizer=build.file("tokenizer"),
        tokenizer_fingerprint=tokenizer.fingerprint,
        ids=ids,
        pairing=config.pairing,
        pairs=config.pair_config(),
    )
    units = [(f"part-{number:05d}", {"number": number, "path": corpus.file(name)}) for number, name in enumerate(corpus.names)]
    made = fan_out(build, "rows", units, make_part, unit_name="bytes", weights=[float(size) for size in corpus.sizes])
    for result in made:
        for split in schema.SPLITS:
            build.counters.update(result[split]["counters"])
    rows = {split: sum(result[split]["rows"] for result in made) for split in schema.SPLITS}
    if not rows[schema.TRAIN]:
        raise DataError(f"{corpus.path} gives no rows for the split {schema.TRAIN}; give `cloze corpus` more text")

    info = schema.DatasetInfo(
        recipe=config.recipe,
        length=config.length,
        copies=config.copies,
        vocab_size=tokenizer.vocab_size,
        special=tokenizer.special,
        pair_task=PAIRINGS[config.pairing].task,
        seed=config.seed,
        tokenizer=tokenizer.fingerprint,
    )
    make_shard = MakeShard(
        directory=directory,
        parts=parts,
        info=info,
        ids=ids,
        tokenizer=build.file("tokenizer"),
        masks=config.mask_config(),
    )
    shards: list[tuple[str, dict[str, Any]]] = []
    for split, count in ((schema.TRAIN, config.shards), (schema.HELDOUT, 1)):
        buckets = ranks.bucket_count(rows[split], config.length)
        for number, part in enumerate(ranks.plan_slices(count_buckets(directory, split, parts, buckets), count)):
            name = schema.shard_name(split, number, count)
            shards.append((name.removesuffix(".arrow"), {"split": split, "path": build.file(name), "slice": asdict(part)}))
    weights = [float(unit["slice"]["rows"]) for _, unit in shards]
    written = fan_out(build, "shards", shards, make_shard, unit_name="rows", weights=weights)
    return _outcome(config, build, rows, written[: config.shards])


def _outcome(config: DatasetConfig, build: Build, rows: dict[str, int], written: list[dict[str, Any]]) -> Outcome:
    """The summary: of the training split, but for `heldout_rows` and `tokens`."""
    total: Counter[str] = Counter()
    for figures in written:
        total.update({name: figures[name] for name in ("row_tokens", "masked", "next", "random", "none")})
    summary = {
        "rows": rows["train"],
        "heldout_rows": rows["heldout"],
        "tokens": build.counters["tokens/read"],
        "row_tokens": total["row_tokens"],
        "shards": config.shards,
        "pair_labels": {name: total[name] for name in ("next", "random", "none")},
        "copies": config.copies,
        "length": config.length,
        "length_histogram": [sum(bins) for bins in zip(*(figures["histogram"] for figures in written), strict=True)],
        "masked_share": round(total["masked"] / (config.copies * total["row_tokens"]), 6),
    }
    return Outcome(rows=rows["train"], tokens=build.counters["tokens/read"], summary=summary)


STAGE = Stage(name="dataset", version=VERSION, config=DatasetConfig, run=run, inputs=("corpus", "vocab"))
