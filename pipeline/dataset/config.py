"""Config and costs of the dataset stage: how text becomes rows and masks. Light."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator, model_validator

from cloze.core import storage
from cloze.core.config import StageConfig
from cloze.core.errors import ClozeError
from cloze.core.options import compose_config_class
from cloze.core.stages.execution import (
    PROCESS_BYTES,
    CostEstimate,
    CostModel,
    Execution,
    MachineSpec,
    MeasuredThroughput,
    Metadata,
    dataset_bytes,
    subtract_startup,
)
from cloze.pipeline.dataset.masking.registry import RULES, MaskFields, default_cap, known
from cloze.pipeline.dataset.pairings.registry import PAIRINGS
from cloze.pipeline.dataset.recipes import RECIPES

MOST_BINS = 64

if TYPE_CHECKING:
    from cloze.pipeline.dataset.masking.candidates import MaskConfig
    from cloze.pipeline.dataset.pairings.segments import PairingConfig

    _OfRulesAndPairings = StageConfig
else:
    _OfRulesAndPairings = compose_config_class(
        "OptionsOfRulesAndPairings",
        StageConfig,
        (row.options for row in (*PAIRINGS.values(), *RULES.values())),
    )

TABLES: dict[str, Collection[str]] = {"recipe": RECIPES, "pairing": PAIRINGS, "masking": RULES}


class ExampleConfig(_OfRulesAndPairings, MaskFields):
    """The training examples, with the options of every pairing and every masking rule.

    Fields that are not set follow the recipe; any combination is allowed.
    """

    recipe: str = "bert"
    """Paper whose training examples are reproduced."""
    length: int = 128
    """Maximum tokens per row, special tokens included."""
    seed: int = Field(default=0, ge=0, lt=1 << 64)
    """Seed of all random numbers."""
    lowercase: bool | None = None
    """Lowercase the text. Default: as the tokenizer's files say."""
    mask_copies: int = Field(default=10, ge=1, le=10_000)
    """Number of masks stored with each row (K)."""
    pairing: str = "nsp"
    """Pairing of a row's two segments; it also decides how documents are cut into rows."""
    short_seq_prob: float = Field(default=0.1, ge=0, le=1)
    """Share of documents that are cut into shorter rows."""
    masking: str = "token"
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

    @field_validator(*TABLES)
    @classmethod
    def _known(cls, name: str, info: Any) -> str:
        return known(info.field_name, name, TABLES[info.field_name])

    def warnings(self) -> list[str]:
        """Return messages about allowed but probably unintended settings, with remedies."""
        messages = []
        has_masks, highest = self.masking != "none", RULES[self.masking].highest_rate
        suggested = default_cap(self.mask_rounding, self.mask_rate, self.length)
        target = round(self.mask_rate * self.length)
        if has_masks and self.max_predictions < target:
            messages.append(
                f"max_predictions ({self.max_predictions}) cuts mask_rate: rows of {self.length} "
                f"tokens have"
                f" {self.max_predictions / self.length:.1%} masked, not {self.mask_rate:.1%}; "
                f"leave it out, or set it to {suggested}"
            )
        if self.mask_rate > highest:
            messages.append(
                f"mask_rate ({self.mask_rate:g}) is more than masking {self.masking} can choose in "
                f"every row;"
                f" use {highest:g} or less"
            )
        if not has_masks and self.mask_copies > 1:
            messages.append(
                f"mask_copies ({self.mask_copies}) has no effect with masking none; use 1"
            )
        return messages

    def pair_config(self) -> PairingConfig:
        """Return the config of the pairing."""
        from cloze.pipeline.dataset.pairings.segments import PairingConfig

        return PairingConfig(**{name: getattr(self, name) for name in PairingConfig.model_fields})

    def mask_config(self) -> MaskConfig:
        """Return the config of masking."""
        from cloze.pipeline.dataset.masking.candidates import MaskConfig

        field_names = {"rule": "masking", "rate": "mask_rate"}
        return MaskConfig(
            **{name: getattr(self, field_names.get(name, name)) for name in MaskConfig.model_fields}
        )


class DatasetConfig(ExampleConfig):
    """The training examples, and how they are stored."""

    shards: int = Field(default=4, ge=1, le=99_999)
    """Number of files of the training split."""
    id_type: Literal["auto", "uint16", "uint32"] = "auto"
    """Data type of token ids. auto: uint16 if the vocabulary allows it."""
    length_bins: int | tuple[int, ...] = 1
    """Bins of rows of similar length, so that batches have less padding: a number of equal bins, or
    their maximum lengths. 1: no bins."""
    compression: Literal["none", "zstd", "lz4"] = "none"
    """Compression of the shards; zstd and lz4 need less disk space and are decompressed on
    reading."""

    @field_validator("length_bins")
    @classmethod
    def _bins_fit(cls, bins: int | tuple[int, ...], info: Any) -> int | tuple[int, ...]:
        length = info.data.get("length", 1 << 16)
        if isinstance(bins, int):
            if not 1 <= bins <= MOST_BINS:
                raise ValueError(f"use 1 to {MOST_BINS} bins")
        elif (
            not bins
            or len(bins) > MOST_BINS
            or list(bins) != sorted(set(bins))
            or bins[0] < 1
            or bins[-1] > length
        ):
            raise ValueError(f"borders rise from 1 to length ({length}), {MOST_BINS} at most")
        return bins


# Check of the disk space before shards are written.

# compressed size relative to the raw size of text, a lower bound
PACKED_SHARE = {"none": 1.0, "zstd": 0.5, "lz4": 0.65}


def check_disk_space(
    path: str, parts: str, mask_share: float, id_bytes: int, copies: int, compression: str
) -> int:
    """Raise if the disk cannot hold the shards; object stores are not checked.

    Args:
        path: directory of the shards.
        parts: directory of the intermediate files, which hold all rows once.
        mask_share: approximate share of predicted tokens.
        id_bytes: bytes per token id.
        copies: number of mask copies.
        compression: compression in the config.

    Returns:
        Approximate bytes of the shards; 0 if unchecked.

    Raises:
        ClozeError: the free space is too small.
    """
    if not storage.is_local(path) or not storage.is_local(parts):
        return 0
    directory = storage.filesystem(parts)[1]
    rows = sum(entry.stat().st_size for entry in os.scandir(directory) if entry.is_file())
    # A row's bytes are nearly all ids; each copy adds a position and an id per prediction.
    masks = rows / id_bytes * mask_share * copies * (2 + id_bytes)
    needed = int((rows + masks) * PACKED_SHARE[compression])
    free = shutil.disk_usage(storage.filesystem(path)[1]).free
    if free < needed:
        raise ClozeError(
            f"{path} has {free / 1e9:.2f} GB free, the shards will take some {needed / 1e9:.2f} GB;"
            f" free some space, or use fewer"
            " copies or --compression zstd, and run the same command again"
        )
    return needed


# Costs: the stage tokenizes the corpus once and writes each row once, with a few bytes per mask
# copy.

START = 2.5
# tokens per second and worker, weighted by mask copies (demo: 2.4M of ten copies, two workers, 5 s)
SPEED = 800e3
BYTES_A_PIECE = 4.2  # of English with a vocabulary of 30,000
# tokens in rows per token read: random next segments are copies from other documents
USED_AGAIN = 1.1
FULL = 0.95  # mean fill of a row
COPY_SHARE = 0.05  # work per mask copy, relative to its row


def ahead(
    config: DatasetConfig,
    inputs: Mapping[str, Metadata],
    execution: Execution,
    computer: MachineSpec,
    before: Metadata | None,
) -> CostEstimate:
    """Estimate the cost from the corpus' bytes and the bytes per token."""
    del before
    corpus, vocab = inputs["corpus"], inputs["vocab"]
    tokens = float(corpus["bytes"]) / float(vocab.get("bytes_per_piece") or BYTES_A_PIECE)
    row_tokens, mean = tokens * USED_AGAIN, FULL * config.length
    vocabulary = 1 << 32 if config.id_type == "uint32" else int(vocab.get("size") or 0)
    rows, masks = dataset_bytes(
        row_tokens,
        vocabulary,
        config.mask_rate,
        0 if config.masking == "none" else config.mask_copies,
    )
    width = min(execution.workers, computer.cpus)
    return CostEstimate(
        work=tokens * (1 + COPY_SHARE * config.mask_copies),
        speed=SPEED,
        startup_seconds=START,
        parallelism=width,
        disk_bytes=int(2 * rows + masks),  # intermediate files exist until the shards are written
        memory_bytes=int((width + 1) * PROCESS_BYTES),
        expected_metadata={
            "tokens": tokens,
            "rows": row_tokens / mean,
            "mean_length": mean,
            "length": config.length,
            "vocab_size": vocab.get("size"),
        },
    )


def afterwards(facts: Metadata) -> MeasuredThroughput | None:
    """Return the throughput in tokens, weighted by mask copies."""
    copies, workers = (
        int(facts["config"].get("mask_copies", 1)),
        int(facts["execution"].get("workers", 1)),
    )
    amount = float(facts["tokens"]) * (1 + COPY_SHARE * copies)
    return MeasuredThroughput(
        amount=amount, seconds=subtract_startup(facts["seconds"], START), width=workers
    )


COSTS = CostModel(estimate=ahead, measure=afterwards)
