"""Stage "dataset": a corpus and a tokenizer in, shards of examples with their masks out.

First every corpus shard is cut into rows, then the rows are spread over shards by a hash, equal to within one row, and
their masks drawn. Both steps are fanned out by Beam; `pipeline.transforms.dataset` holds what they do.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection
from dataclasses import asdict
from typing import Any

from pydantic import Field, field_validator, model_validator

from pipeline.errors import did_you_mean
from pipeline.examples.masking import RULES
from pipeline.examples.pairs import PAIRINGS
from pipeline.examples.recipes import RECIPES
from pipeline.stage import Build, Outcome, Stage, StageConfig

VERSION = 1


class DatasetConfig(StageConfig):
    """What the examples are like. Fields from `pairing` on follow from the recipe unless they are set.

    Attributes:
        recipe: a name in `pipeline.examples.recipes.RECIPES`.
        length: the most tokens of a row, special tokens included.
        copies: masks stored with each row (K).
        shards: files of the training split.
        seed: of all random numbers.
        id_type: auto takes uint16 where the vocabulary allows it.
        lowercase: overrides what the tokenizer's files say about case.
        pairing: how documents are cut, and what the two segments of a row are.
        masking: the rule that chooses tokens.
        mask_rate: the share of tokens, special ones counted, that are predicted.
        max_predictions: the most predictions a row has; round(mask_rate · length) + 1 unless it is set, which is
            BERT's 20 at length 128, and never the trap of 20 at 512.
        mask_share: the share of predicted tokens replaced by [MASK].
        random_share: the share replaced by a random piece.
        short_seq_prob: the share of documents cut into shorter rows.
    """

    recipe: str = "bert"
    length: int = 128
    copies: int = Field(default=10, ge=1, le=10_000)
    shards: int = Field(default=4, ge=1, le=99_999)
    seed: int = Field(default=0, ge=0, lt=1 << 64)
    id_type: str = "auto"
    lowercase: bool | None = None
    pairing: str = "nsp"
    masking: str = "token"
    mask_rate: float = Field(default=0.15, gt=0, lt=1)
    max_predictions: int = Field(default=20, ge=1)
    mask_share: float = Field(default=0.8, ge=0, le=1)
    random_share: float = Field(default=0.1, ge=0, le=1)
    short_seq_prob: float = Field(default=0.1, ge=0, le=1)

    @model_validator(mode="before")
    @classmethod
    def _follow_recipe(cls, values: Any) -> Any:
        """Fill what is not set from the recipe; what is wrong is told by its own field."""
        if not isinstance(values, dict):
            return values
        given = {name: value for name, value in values.items() if value is not None}
        recipe = RECIPES.get(given.get("recipe", "bert"))
        filled = {**(asdict(recipe()) if recipe else {}), **given}
        with contextlib.suppress(TypeError, ValueError):
            scaled = round(float(filled.get("mask_rate", 0.15)) * int(filled.get("length", 128))) + 1
            filled.setdefault("max_predictions", max(1, scaled))
        return filled

    @field_validator("length")
    @classmethod
    def _fits(cls, length: int) -> int:
        if not 8 <= length <= 65_535:
            raise ValueError("a row has 8 to 65,535 tokens; BERT uses 128 and 512")
        return length

    @field_validator("recipe", "pairing", "masking", "id_type")
    @classmethod
    def _known(cls, name: str, info: Any) -> str:
        tables: dict[str, Collection[str]] = {
            "recipe": RECIPES,
            "pairing": PAIRINGS,
            "masking": RULES,
            "id_type": ("auto", "uint16", "uint32"),
        }
        if name not in tables[info.field_name]:
            raise ValueError(f"unknown {info.field_name}; {did_you_mean(name, tables[info.field_name])}")
        return name

    @field_validator("random_share")
    @classmethod
    def _leaves_room(cls, share: float, info: Any) -> float:
        masked = info.data.get("mask_share", 0.0)
        if masked + share > 1 + 1e-9:
            raise ValueError(f"more than what mask_share ({masked}) leaves; lower one of them")
        return share


def run(config: DatasetConfig, build: Build) -> Outcome:
    """Make the shards.

    Raises:
        UsageError: ids of `id_type` cannot hold the vocabulary.
        DataError: the corpus or the tokenizer is missing or damaged, or the corpus has no training text.
    """
    from pipeline import schema, storage
    from pipeline.errors import DataError
    from pipeline.examples.masking.draw import MaskConfig
    from pipeline.examples.pairs.segments import PairConfig
    from pipeline.tokenizer import load
    from pipeline.transforms import dataset, ranks
    from pipeline.transforms.corpus_shards import CorpusShards
    from pipeline.transforms.runner import fan_out

    corpus = CorpusShards.open(build.inputs["corpus"])
    tokenizer = load(build.inputs["vocab"], config.lowercase)
    ids = str(schema.id_dtype(tokenizer.vocab_size, config.id_type))
    tokenizer.save(build.file("tokenizer"))
    parts, directory = len(corpus.names), storage.join(build.scratch, "parts")
    make_part = dataset.MakePart(
        directory=directory,
        tokenizer=build.file("tokenizer"),
        tokenizer_fingerprint=tokenizer.fingerprint,
        ids=ids,
        pairing=config.pairing,
        pairs=PairConfig(length=config.length, short_seq_prob=config.short_seq_prob, seed=config.seed),
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
    make_shard = dataset.MakeShard(
        directory=directory,
        parts=parts,
        info=info,
        ids=ids,
        tokenizer=build.file("tokenizer"),
        masks=MaskConfig(
            rule=config.masking,
            rate=config.mask_rate,
            max_predictions=config.max_predictions,
            mask_share=config.mask_share,
            random_share=config.random_share,
        ),
    )
    shards: list[tuple[str, dict[str, Any]]] = []
    for split, count in ((schema.TRAIN, config.shards), (schema.HELDOUT, 1)):
        buckets = ranks.bucket_count(rows[split], config.length)
        for number, part in enumerate(ranks.plan_slices(dataset.count_buckets(directory, split, parts, buckets), count)):
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
