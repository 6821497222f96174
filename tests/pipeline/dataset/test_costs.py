"""What a plan says of a dataset before it is made, to the number, and the room on the disk."""

from __future__ import annotations

import shutil
from types import SimpleNamespace
from typing import Any

import pytest

from cloze.core.errors import ClozeError
from cloze.core.stages.cost import MachineSpec, PlannedBuild
from cloze.core.stages.execution import Execution
from cloze.pipeline.dataset.config import (
    COMPRESSED_SHARE,
    COSTS,
    DatasetConfig,
    ExampleConfig,
    check_disk_space,
    shard_bytes,
)

CORPUS = {"bytes": 1_000_000, "sentences": 8000, "documents": 500}
VOCAB = {"bytes_per_piece": 4.0, "size": 30_000}


def estimate(
    inputs: dict[str, Any], workers: int = 3, cpus: int = 2, **settings: Any
) -> tuple[Any, dict[str, Any]]:
    config, machine = DatasetConfig(**settings), MachineSpec(cpus=cpus)
    found = COSTS.estimate(PlannedBuild(config, inputs, Execution(workers=workers), machine))
    return found, dict(found.expected_metadata)


@pytest.mark.parametrize(
    ("settings", "work", "disk", "rows", "mean_length"),
    [
        ({"recipe": "bert"}, 475_000, 8_124_999, 16_603.35, 94.1075),
        ({"recipe": "bert", "pairing": "sentence-pair"}, 475_000, 9_099_097, 27_719.95, 63.1252),
        ({"recipe": "albert"}, 975_000, 16_000_000, 22_137.80, 112.9290),
        ({"recipe": "roberta"}, 375_000, 2_499_999, 2_224.694, 112.375),
        ({"recipe": "roberta-doc"}, 375_000, 2_500_000, 2_484.051, 100.6421),
        ({"recipe": "packed"}, 375_000, 3_999_999, 2_224.694, 112.375),
        ({"recipe": "electra"}, 375_000, 2_500_000, 2_213.780, 112.9290),
        ({"pairing": "segment-pair", "random_next_prob": 0.2}, 475_000, 7_150_000, 13_282.68, 103.5183),
        ({"pairing": "sop", "mask_copies": 3}, 537_500, 7_250_000, 11_068.90, 112.9290),
        ({"recipe": "lm"}, 262_500, 999_999, 2_224.694, 112.375),
    ],
)  # fmt: skip
def test_each_pairing_has_rows_of_its_own_number_and_length(
    settings: dict[str, Any], work: float, disk: int, rows: float, mean_length: float
) -> None:
    found, expected = estimate({"corpus": CORPUS, "vocab": VOCAB}, **settings)
    assert (found.work, found.disk_bytes) == (pytest.approx(work), pytest.approx(disk, abs=1))
    assert expected == {
        "tokens": 250_000,
        "rows": pytest.approx(rows, rel=1e-5),
        "mean_length": pytest.approx(mean_length, rel=1e-5),
        "length": 128,
        "vocab_size": 30_000,
    }
    assert (found.speed, found.startup_seconds, found.parallelism) == (800e3, 2.5, 2)
    assert found.memory_bytes == 3 * (250 << 20)


def test_what_is_not_known_yet_is_that_of_english() -> None:
    found, expected = estimate(
        {"corpus": {"bytes": 1_000_000, "documents": 500}, "vocab": {}}, workers=2, cpus=4
    )
    assert (found.work, found.disk_bytes) == (pytest.approx(452_380.952), 7_738_095)
    assert expected == {
        "tokens": pytest.approx(238_095.238),
        "rows": pytest.approx(15_909.792),
        "mean_length": pytest.approx(93.53329),
        "length": 128,
        "vocab_size": None,
    }
    assert found.parallelism == 2
    _, nothing = estimate({"corpus": {**CORPUS, "bytes": 0, "documents": 0}, "vocab": VOCAB})
    assert nothing["tokens"] == 1


@pytest.mark.parametrize(("size", "disk"), [(1 << 16, 7_738_095), ((1 << 16) + 1, 14_583_333)])
def test_ids_of_a_large_vocabulary_are_wide(size: int, disk: int) -> None:
    inputs = {"corpus": {"bytes": 1_000_000, "documents": 500}, "vocab": {"size": size}}
    assert estimate(inputs)[0].disk_bytes == pytest.approx(disk, abs=1)


def test_what_was_made_says_how_fast_the_next_will_be() -> None:
    settings = {"drawings": 5, "mask_copies": 2}
    made = {"tokens": 1000, "seconds": 12.5, "config": settings, "execution": {"workers": 4}}
    found = COSTS.measure(made)
    assert found is not None
    assert (found.amount, found.seconds, found.width) == (pytest.approx(1900), 10.0, 4)
    found = COSTS.measure({**made, "config": {}, "execution": {}})
    assert found is not None
    assert (found.amount, found.width) == (pytest.approx(1050), 1)


@pytest.mark.parametrize("compression", sorted(COMPRESSED_SHARE))
def test_a_disk_that_is_too_small_is_told_before_it_is_full(
    compression: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = DatasetConfig(compression=compression, drawings=1, mask_copies=10, mask_rate=0.2)
    raw = 1e9 + 2 * 1e9 * 2  # two bytes a token, and of each copy four bytes for a fifth of them
    assert sum(shard_bytes(config, 5e8, 2)) == pytest.approx(raw)
    needed = int(raw * {"none": 1.0, "zstd": 0.5, "lz4": 0.65}[compression])
    for free in (needed, needed - 1):
        monkeypatch.setattr(
            shutil, "disk_usage", lambda path, free=free: SimpleNamespace(free=free)
        )
        given = (["/none/train"], 1_000_000_000, config, 2)
        check_disk_space("memory://a", *given)
        if free == needed:
            check_disk_space("/tmp", *given)
            continue
        with pytest.raises(ClozeError) as caught:
            check_disk_space("/tmp", *given)
        assert str(caught.value) == (
            f"/tmp has {free / 1e9:.2f} GB free, the shards will take some {needed / 1e9:.2f} GB; "
            f"free some space, or use fewer drawings, fewer copies or --compression zstd, and run "
            f"the same command again"
        )


def test_rows_without_masks_take_no_room_for_them() -> None:
    assert shard_bytes(DatasetConfig(recipe="lm"), 1000, 4) == (4000, 0)
    assert shard_bytes(DatasetConfig(mask_rate=0.1, mask_copies=3), 1000, 4) == (
        4000,
        pytest.approx(1000 * 0.1 * 3 * 6),
    )


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"recipe": "roberta", "drawings": 2},
            "drawings (2) repeats most rows, because pairing full draws no pairs; use 1, and more "
            "mask_copies",
        ),
        (
            {"recipe": "lm", "mask_copies": 2},
            "mask_copies (2) has no effect with masking none; use 1",
        ),
        (
            {"length": 100, "max_predictions": 14},
            "max_predictions (14) cuts mask_rate: rows of 100 tokens have 14.0% masked, not 15.0%; "
            "leave it out, or set it to 16",
        ),
        ({"length": 100, "max_predictions": 15}, None),
        (
            {"recipe": "spanbert", "mask_rate": 0.51},
            "mask_rate (0.51) is more than masking span can choose in every row; use 0.5 or less",
        ),
        ({"recipe": "spanbert", "mask_rate": 0.5}, None),
        ({"drawings": 2}, None),
    ],
)
def test_settings_that_are_hardly_meant(settings: dict[str, Any], says: str | None) -> None:
    assert ExampleConfig(**settings).warnings() == ([] if says is None else [says])


@pytest.mark.parametrize(
    ("settings", "drawings", "copies"),
    [
        ({}, 5, 2),
        ({"drawings": 3}, 3, 2),
        ({"pairing": "full"}, 1, 10),  # hardly another drawing: the masks of all of them
        ({"pairing": "full", "drawings": 3}, 3, 2),
        ({"pairing": "full", "mask_copies": 4}, 1, 4),
        ({"recipe": "albert", "pairing": "document"}, 1, 40),
        ({"recipe": "roberta"}, 1, 10),
        ({"recipe": "lm"}, 1, 1),
    ],
)
def test_drawings_that_would_not_differ_are_one(
    settings: dict[str, Any], drawings: int, copies: int
) -> None:
    config = ExampleConfig(**settings)
    assert (config.drawings, config.mask_copies) == (drawings, copies)
    assert (config.max_tokens, config.max_single) == (125, 126)
