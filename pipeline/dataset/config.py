"""Config and costs of the dataset stage: how text becomes rows and masks. Light."""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from cloze.core import storage
from cloze.core.config import StageConfig
from cloze.core.errors import ClozeError
from cloze.core.options import compose_config_class, known
from cloze.core.stages.cost import (
    PROCESS_BYTES,
    CostEstimate,
    CostModel,
    MeasuredThroughput,
    Metadata,
    PlannedBuild,
)
from cloze.pipeline.dataset.masking.registry import RULES, MaskFields, default_cap
from cloze.pipeline.dataset.pairings.registry import PAIRINGS, NspOptions
from cloze.pipeline.dataset.recipes import RECIPES

if TYPE_CHECKING:
    from cloze.pipeline.dataset.masking.candidates import MaskConfig

    _OfRulesAndPairings = StageConfig
else:
    _OfRulesAndPairings = compose_config_class(
        "OptionsOfRulesAndPairings",
        StageConfig,
        (row.options for row in (*PAIRINGS.loaded().values(), *RULES.loaded().values())),
    )


class ExampleConfig(_OfRulesAndPairings, MaskFields):
    """The training examples, with the options of every pairing and every masking rule.

    Fields that are not set follow the recipe; any combination is allowed.
    """

    recipe: Annotated[str, known(RECIPES, "unknown recipe")] = "bert"
    """Paper whose training examples are reproduced."""
    length: int = 128
    """Maximum tokens per row, special tokens included."""
    seed: int = Field(default=0, ge=0, lt=1 << 64)
    """Seed of all random numbers."""
    lowercase: bool | None = None
    """Lowercase the text. Default: as the tokenizer's files say."""
    mask_copies: int = Field(default=10, ge=1, le=10_000)
    """Number of masks stored with each row (K)."""
    drawings: int = Field(default=1, ge=1, le=1000)
    """Number of times that documents are cut into rows anew, each with its own pairs, short rows
    and masks (D)."""
    pairing: Annotated[str, known(PAIRINGS, "unknown pairing")] = "nsp"
    """Pairing of a row's two segments; it also decides how documents are cut into rows."""
    short_seq_prob: float = Field(default=0.1, ge=0, le=1)
    """Share of documents that are cut into shorter rows."""
    masking: Annotated[str, known(RULES, "unknown masking")] = "token"
    """Rule that chooses the tokens to mask; none is for left-to-right models."""
    mask_rate: float = Field(default=0.15, gt=0, lt=1)
    """Share of tokens to predict."""

    @model_validator(mode="before")
    @classmethod
    def _follow_recipe(cls, values: Any) -> Any:
        """Fill unset fields from the recipe; an invalid value is reported by its own field."""
        if not isinstance(values, dict):
            return values
        explicit = {name: value for name, value in values.items() if value is not None}
        name = explicit.get("recipe", "bert")
        recipe = RECIPES.get(name) if isinstance(name, str) else None
        filled = {**(recipe() if recipe else {}), **explicit}
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            if not draws_pairs(filled) and "drawings" not in explicit:
                # drawings would hardly differ: one, with the masks of all of them
                drawings = filled.pop("drawings", 1)
                if "mask_copies" in filled and "mask_copies" not in explicit:
                    filled["mask_copies"] *= drawings
            rate, length = float(filled.get("mask_rate", 0.15)), int(filled.get("length", 128))
            filled.setdefault(
                "max_predictions",
                default_cap(str(filled.get("mask_rounding", "bert")), rate, length),
            )
        return filled

    @field_validator("length")
    @classmethod
    def _fits(cls, length: int) -> int:
        if not 8 <= length <= 65_535:
            raise ValueError("a row has 8 to 65,535 tokens; BERT uses 128 and 512")
        return length

    def warnings(self) -> list[str]:
        """Return messages about allowed but probably unintended settings, with remedies."""
        messages = []
        has_masks, highest = self.masking != "none", RULES[self.masking].highest_rate
        suggested = self.default_max_predictions
        target = min(suggested, round(self.mask_rate * self.length))
        if has_masks and self.max_predictions < target:
            messages.append(
                f"max_predictions ({self.max_predictions}) cuts mask_rate: rows of {self.length} "
                f"tokens have {self.max_predictions / self.length:.1%} masked, not "
                f"{self.mask_rate:.1%}; leave it out, or set it to {suggested}"
            )
        if self.mask_rate > highest:
            messages.append(
                f"mask_rate ({self.mask_rate:g}) is more than masking {self.masking} can choose in "
                f"every row; use {highest:g} or less"
            )
        if self.drawings > 1 and not draws_pairs(self.model_dump()):
            messages.append(
                f"drawings ({self.drawings}) repeats most rows, because pairing {self.pairing} "
                f"draws no pairs; use 1, and more mask_copies"
            )
        if not has_masks and self.mask_copies > 1:
            messages.append(
                f"mask_copies ({self.mask_copies}) has no effect with masking none; use 1"
            )
        return messages

    @property
    def default_max_predictions(self) -> int:
        """Maximum predictions per row if none is set."""
        return default_cap(self.mask_rounding, self.mask_rate, self.length)

    @property
    def max_tokens(self) -> int:
        """Maximum text tokens in `[CLS] A [SEP] B [SEP]`."""
        return self.length - 3

    @property
    def max_single(self) -> int:
        """Maximum text tokens in `[CLS] A [SEP]`."""
        return self.length - 2

    def mask_config(self) -> MaskConfig:
        """Return the config of masking."""
        from cloze.pipeline.dataset.masking.candidates import MaskConfig

        field_names = {"rule": "masking", "rate": "mask_rate"}
        return MaskConfig(
            **{name: getattr(self, field_names.get(name, name)) for name in MaskConfig.model_fields}
        )


def draws_pairs(values: Mapping[str, Any]) -> bool:
    """Report whether a config's pairing draws more than short rows, so that drawings differ."""
    pairing = PAIRINGS.get(values.get("pairing", "nsp"))
    return pairing is None or pairing.options is not None


class DatasetConfig(ExampleConfig):
    """The training examples, and how they are stored."""

    shards: int = Field(default=4, ge=1, le=99_999)
    """Number of files of the training split."""
    length_bins: int = Field(default=1, ge=1, le=64)
    """Number of equal bins of rows of similar length, so that batches have less padding. 1: no
    bins."""
    compression: Literal["none", "zstd", "lz4"] = "none"
    """Compression of the shards; zstd and lz4 need less disk space and are decompressed on
    reading."""


# Size of the shards, and the check of the disk space before they are written.

# compressed size relative to the raw size of text, a lower bound
COMPRESSED_SHARE = {"none": 1.0, "zstd": 0.5, "lz4": 0.65}


def shard_bytes(config: DatasetConfig, tokens: float, id_bytes: int) -> tuple[float, float]:
    """Return the bytes of rows with `tokens` tokens, and of their mask copies, uncompressed.

    A row's bytes are nearly all ids. A mask copy stores a position and a replacement per mask.
    """
    copies = 0 if config.masking == "none" else config.mask_copies
    return tokens * id_bytes, tokens * config.mask_rate * copies * (2 + id_bytes)


def check_disk_space(
    path: str, shards: Iterable[str], rows: int, config: DatasetConfig, id_bytes: int
) -> None:
    """Check that the disk can hold the shards; object stores are not checked.

    Args:
        shards: the files to write; those that an earlier attempt wrote need no more space.
        rows: bytes of all rows before masking.
        id_bytes: bytes per token id.

    Raises:
        ClozeError: the free space is too small.
    """
    if not storage.is_local(path):
        return
    raw_bytes = sum(shard_bytes(config, rows / id_bytes, id_bytes))
    written = sum(storage.stat(shard)["size"] for shard in shards if storage.exists(shard))
    needed = int(raw_bytes * COMPRESSED_SHARE[config.compression]) - written
    free = shutil.disk_usage(storage.filesystem(path)[1]).free
    if free < needed:
        raise ClozeError(
            f"{path} has {free / 1e9:.2f} GB free, the shards will take some {needed / 1e9:.2f} GB;"
            f" free some space, or use fewer drawings, fewer copies or --compression zstd, and run "
            f"the same command again"
        )


# Costs: the stage tokenizes the corpus once and writes each row once, with a few bytes per mask
# copy.

STARTUP_SECONDS = 2.5
# tokens per second and worker, weighted by mask copies (demo: 2.4M of ten copies, two workers, 5 s)
TOKENS_PER_SECOND = 800e3
BYTES_PER_TOKEN = 4.2  # of English with a vocabulary of 30,000
SENTENCE_BYTES = 135.0  # of Wikipedia's English, for a corpus that is not there yet
COPY_SHARE = 0.05  # work per mask copy, relative to tokenizing its row
DRAWING_SHARE = 0.1  # work per drawing but the first


def _work_share(drawings: int, copies: int) -> float:
    """Return the work relative to tokenizing the text once."""
    return 1 + DRAWING_SHARE * (drawings - 1) + COPY_SHARE * drawings * copies


def estimate_cost(plan: PlannedBuild[DatasetConfig]) -> CostEstimate:
    """Estimate the cost from the corpus' bytes and sentences, and the bytes per token."""
    config = plan.config
    corpus, vocab = plan.inputs["corpus"], plan.inputs["vocab"]
    bytes_per_token = float(vocab.get("bytes_per_piece") or BYTES_PER_TOKEN)
    tokens = max(1.0, float(corpus["bytes"]) / bytes_per_token)
    sentences = float(corpus.get("sentences") or float(corpus["bytes"]) / SENTENCE_BYTES)
    documents = max(1.0, float(corpus["documents"]))
    rows, mean_length = _estimate_rows(config, tokens, max(1.0, sentences), documents)
    id_bytes = 4 if int(vocab.get("size") or 0) > 1 << 16 else 2
    rows *= config.drawings
    row_bytes, mask_bytes = shard_bytes(config, rows * mean_length, id_bytes)
    parallelism = min(plan.execution.workers, plan.machine.cpus)
    return CostEstimate(
        work=tokens * _work_share(config.drawings, config.mask_copies),
        speed=TOKENS_PER_SECOND,
        startup_seconds=STARTUP_SECONDS,
        parallelism=parallelism,
        # intermediate files exist until the shards are written
        disk_bytes=int(2 * row_bytes + mask_bytes),
        memory_bytes=int((parallelism + 1) * PROCESS_BYTES),
        expected_metadata={
            "tokens": tokens,
            "rows": rows,
            "mean_length": mean_length,
            "length": config.length,
            "vocab_size": vocab.get("size"),
        },
    )


def _estimate_rows(
    config: DatasetConfig, tokens: float, sentences: float, documents: float
) -> tuple[float, float]:
    """Return the number of rows, and their mean length in tokens, to a fifth.

    Pairs are cut to the length of a row, other rows lack half a sentence. Rows that end with their
    document are counted as if the documents' lengths were exponentially distributed. A random next
    segment is a copy, and the text that it displaces makes another row.
    """
    pairing, length = PAIRINGS[config.pairing], float(config.length)
    assert isinstance(config, NspOptions)
    random = config.random_next_prob if pairing.options is NspOptions else 0.0
    if pairing.sentences is not None:
        # Sentences longer than a row are cut into halves of rows. Lengths count as exponentially
        # distributed, with the mean counted in halves of a row.
        mean = 2 * tokens / sentences / config.max_tokens
        sentences *= 1 + math.exp(-2 / mean) * (1 - 1 / math.expm1(-1 / mean))
        mean_length = min(length, 3 + pairing.sentences * tokens / sentences)
        return sentences / (pairing.sentences - random), mean_length
    if pairing.options is None:
        length = max(length / 2, length - tokens / sentences / 2)
    if pairing.crosses_documents:
        return tokens / length, length
    rows = (1 + random) * documents / -math.expm1(-length * documents / tokens)
    return rows, min(length, (1 + random / 2) * tokens / rows)


def measure_throughput(metadata: Metadata) -> MeasuredThroughput:
    """Return the throughput in tokens, weighted by drawings and mask copies."""
    numbers = [int(metadata["config"].get(name, 1)) for name in ("drawings", "mask_copies")]
    amount = float(metadata["tokens"]) * _work_share(*numbers)
    return MeasuredThroughput.by_workers(metadata, amount, STARTUP_SECONDS)


COSTS = CostModel(estimate=estimate_cost, measure=measure_throughput)
