"""Limits of `promote_if`: kept, broken, or too noisy to decide; and what a night does with them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.core.artifacts.artifact import Manifest, write_manifest
from cloze.core.errors import UsageError
from cloze.core.stages.execute import BuildResult
from cloze.flows.nightly import suite
from cloze.flows.nightly.journal import Journal, promote
from cloze.flows.nightly.nightly_run import nightly_run, preview
from cloze.flows.nightly.suite import LIMITS
from cloze.flows.run.session import RunSession
from cloze.labs.costs.limits import quantile
from tests.flows.nightly.test_looking import training
from tests.flows.nightly.test_night import runs as runs

NAMES = ("latency_ms", "latency_p99_ms", "latency_ratio", "energy_mj", "size_mb")


def times(center: float, spread: float, count: int = 400, seed: int = 0) -> list[float]:
    return list(center * np.exp(spread * np.random.default_rng(seed).normal(size=count)))


def write_latency(path: Path, cells: Sequence[dict[str, Any]], megabytes: float = 17.6) -> str:
    path.mkdir(parents=True, exist_ok=True)
    (path / "metrics.json").write_text(json.dumps({"bytes": 1e6 * megabytes, "cells": list(cells)}))
    write_manifest(str(path), manifest("latency", {}))
    return str(path)


def cell(own: list[float], champion: list[float] | None = None, **values: Any) -> dict[str, Any]:
    found = {
        "length": 128, "batch_size": 1, "threads": 2, "latency_ms": quantile(own, 0.5),
        "latency_p99_ms": quantile(own, 0.99), "own_times_ms": own, **values,
    }  # fmt: skip
    if champion is not None:
        pairs = [a / b for a, b in zip(own, champion, strict=True)]
        found |= {"latency_ratio": quantile(pairs, 0.5), "champion_times_ms": champion}
    return found


def manifest(stage: str, summary: dict[str, Any], fingerprint: str = "f" * 64) -> Manifest:
    return Manifest(
        stage=stage, version=1, fingerprint=fingerprint, parents={}, config={}, files=(),
        summary=summary,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "limit", "expected", "words"),
    [
        ("latency_ms", "<= 12", True, "keeps <= 12 at 1 × 128 tokens, 2 threads"),
        ("latency_ms", "<=8", False, "is above <= 8"),
        ("latency_ms", "<= 10", False, "is too noisy for <= 10"),
        ("latency_p99_ms", "<= 20", True, "keeps <= 20"),
        ("latency_ratio", "<= 1.05", True, "times the champion's (0.9"),
        ("latency_ratio", "<= 0.5", False, "is above <= 0.5"),
        ("energy_mj", "<= 3.5", True, "energy_mj 3.2 mJ keeps"),
        ("energy_mj", "<= 3", False, "is above <= 3"),
        ("size_mb", "<= 250", True, "size_mb 17.6 MB keeps <= 250"),
        ("size_mb", "<= 17.5", False, "size_mb 17.6 MB is above <= 17.5"),
    ],
)
def test_a_limit_is_kept_or_not_and_says_why(
    tmp_path: Path, name: str, limit: str, expected: bool, words: str
) -> None:
    load = times(1.0, 0.5, seed=7)  # of the machine: it hits both
    own = [a * b for a, b in zip(times(10.0, 0.02), load, strict=True)]
    champion = [a * b for a, b in zip(times(10.0, 0.02, seed=1), load, strict=True)]
    noisy = name == "latency_ratio" or limit == "<= 10"
    measured = cell(own, champion) if noisy else cell(times(10.0, 0.02), energy_mj=3.2)
    path = write_latency(tmp_path, [measured])
    holds, sentence = LIMITS[name](limit, [path], 0.95)
    assert (holds, words in sentence) == (expected, True), sentence


def test_a_p99_of_few_passes_is_not_known(tmp_path: Path) -> None:
    path = write_latency(tmp_path, [cell(times(10.0, 0.02, count=200))])
    assert LIMITS["latency_p99_ms"]("<= 100", [path], 0.95)[0] is False
    assert LIMITS["latency_ms"]("<= 100", [path], 0.95)[0] is True


def test_every_combination_has_to_keep_it(tmp_path: Path) -> None:
    cells = [cell(times(10.0, 0.02)), cell(times(30.0, 0.02), length=512)]
    holds, sentence = LIMITS["latency_ms"]("<= 12", [write_latency(tmp_path, cells)], 0.95)
    assert not holds
    assert "keeps <= 12 at 1 × 128" in sentence
    assert "is above <= 12 at 1 × 512" in sentence


def test_what_nobody_measured_is_not_kept_and_a_first_champion_has_no_ratio(tmp_path: Path) -> None:
    path = write_latency(tmp_path, [cell(times(10.0, 0.02))])
    assert LIMITS["energy_mj"]("<= 3", [path], 0.95) == (
        False, "energy_mj is not compared: not measured",
    )  # fmt: skip
    assert LIMITS["latency_ratio"]("<= 1.1", [path], 0.95)[0] is True


@given(st.integers(0, 10_000), st.floats(0.01, 1.0), st.integers(10, 300))
def test_equal_times_keep_no_limit_below_them(seed: int, spread: float, count: int) -> None:
    """The interval contains the quantile, so a limit below the median is never kept."""
    own = times(10.0, spread, count, seed)
    low, high = quantile(own, 0.5, 0.95)
    assert low <= quantile(own, 0.5) <= high


def test_an_interval_has_its_coverage() -> None:
    inside = [
        low <= 1.0 <= high
        for seed in range(400)
        for low, high in [quantile(times(1.0, 0.3, 60, seed), 0.5, 0.95)]
    ]
    assert np.mean(inside) > 0.93


@pytest.mark.parametrize("limit", ["12", ">= 12", "<= twelve", "<= -1", "<= 1e999x", "", "<= nan"])
@pytest.mark.parametrize("name", NAMES)
def test_a_malformed_limit_is_one_sentence(name: str, limit: str) -> None:
    with pytest.raises(UsageError, match=rf'{name} .* write it as "<= 12"'):
        suite.load("night", {"night": {"promote_if": {name: limit}}, "latency": {}})


@pytest.mark.parametrize(
    ("promote_if", "words"),
    [
        ("beter", "use better or not_worse"),
        ({"score": "best"}, "use better or not_worse"),
        ({"latncy_ms": "<= 12"}, "latency_ms"),
        ({"latency_ms": 12}, 'write it as "<= 12"'),
        (12, "use better or not_worse"),
        (["better"], "use better or not_worse"),
    ],
)
def test_a_wrong_condition_is_one_sentence(promote_if: Any, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        suite.load("night", {"night": {"promote_if": promote_if}, "latency": {}})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_limit_without_its_stage_is_refused_before_any_work() -> None:
    with pytest.raises(UsageError, match=r"promote_if \(latency_ms\) needs a section latency"):
        suite.load("night", {"night": {"promote_if": {"latency_ms": "<= 12"}}})


# Nights whose nodes are written by hand: scores and times of each checkpoint.

SUITE = {
    "night": {
        "promote_if": {"score": "not_worse", "latency_ms": "<= 12", "latency_ratio": "<= 1.1"}
    },
    "latency": {"lengths": [128]},
}


def hold(
    milliseconds: dict[str, float], against: float = 10.0, task: str = "sst2", **conditions: str
) -> Any:
    """Hold a night; `milliseconds` by run."""
    promote_if = {**SUITE["night"]["promote_if"], **conditions}

    def run(session: RunSession) -> None:
        for step in session.steps:
            name = step.node.values["of"].partition(".")[0]
            os.makedirs(step.artifact, exist_ok=True)
            own = times(milliseconds[name], 0.02)
            if step.node.stage == "latency":
                has_champion = "champion" in step.node.inputs
                rival = times(against, 0.02, seed=3) if has_champion else None
                write_latency(Path(step.artifact), [cell(own, rival)])
                made = manifest("latency", {}, step.fingerprint)
            else:
                summary = {"task": task, "metric": "accuracy", "metrics": {"accuracy": 0.9}}
                made = manifest(step.node.stage, summary, step.fingerprint)
            write_manifest(step.artifact, made)
            session.results[step.name] = BuildResult(
                artifact=step.artifact, cached=False, seconds=1.0, manifest=made
            )

    overrides = {**SUITE, "night": {"promote_if": promote_if}}
    return nightly_run(suite.load("night", overrides), run=run)


def test_the_first_champion_keeps_the_limits_too(runs: Path) -> None:
    training(runs / "slow" / "pretrain-aaa", "a" * 64, [20])
    outcome = hold({"slow": 20.0})
    assert outcome.champion is None
    assert outcome.why.startswith("kept: the first champion")
    assert "latency_ms 20" in outcome.why
    assert "is above <= 12" in outcome.why
    training(runs / "quick" / "pretrain-bbb", "b" * 64, [20])
    outcome = hold({"slow": 20.0, "quick": 10.0})
    assert outcome.champion.run == "quick"
    assert "latency_ratio is not compared: no champion" in outcome.why


def test_of_two_candidates_the_one_within_the_limits_is_promoted(runs: Path) -> None:
    made = training(runs / "old" / "pretrain-aaa", "a" * 64, [20])
    promote(Journal(runs), str(made), "by hand")
    training(runs / "slow" / "pretrain-bbb", "b" * 64, [20])
    shown = preview(suite.load("night", SUITE))
    names = [node["name"] for node in shown["nodes"] if node["stage"] == "latency"]
    assert len(names) == 2  # the candidate's and the champion's
    outcome = hold({"old": 10.0, "slow": 11.8}, against=10.0)
    assert not outcome.is_promoted
    assert outcome.why.startswith("kept: sst2 ±0.0")
    assert "latency_ratio 1.18 times the champion's" in outcome.why
    assert "is above <= 1.1" in outcome.why
    training(runs / "quick" / "pretrain-ccc", "c" * 64, [20])
    training(runs / "slower" / "pretrain-ddd", "d" * 64, [20])
    outcome = hold({"old": 10.0, "quick": 9.0, "slower": 40.0})
    assert outcome.is_promoted
    assert outcome.champion.run == "quick"
    assert "latency_ratio 0.899" in outcome.champion.why


def test_the_explanation_names_a_task_as_it_is_called(runs: Path) -> None:
    made = training(runs / "old" / "pretrain-aaa", "a" * 64, [20])
    promote(Journal(runs), str(made), "by hand")
    training(runs / "slow" / "pretrain-bbb", "b" * 64, [20])
    outcome = hold({"old": 10.0, "slow": 40.0}, task="promoted_posts", score="better")
    assert not outcome.is_promoted
    assert outcome.why.startswith("kept: promoted_posts ±0.0")
    assert "is above <= 12" in outcome.why
