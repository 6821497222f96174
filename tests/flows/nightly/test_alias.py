"""The champion in MLflow's registry: registered once, from whatever is left of its files."""

from __future__ import annotations

import shutil
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from cloze.core.errors import ClozeError
from cloze.flows.nightly.journal import (
    REGISTERED,
    ROLLBACK,
    Champion,
    Journal,
    promote,
    roll_back,
)
from cloze.flows.nightly.registration import sync_alias
from cloze.flows.tracking.metadata import user_name
from tests.flows.nightly.test_journal import champion, night
from tests.flows.nightly.test_looking import training


@dataclass
class Registry:
    """Stands in for MLflow's; keeps what it is given."""

    known: dict[str, int] = field(default_factory=dict)
    registered: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    alias: list[int] = field(default_factory=list)

    def find(self, key: str) -> int | None:
        return self.known.get(key)

    def register(self, path: str, *, fingerprint: str, **how: Any) -> int:
        self.registered.append((path, how))
        return self.known.setdefault(fingerprint, len(self.known) + 1)

    def set_champion(self, version: int) -> None:
        self.alias.append(version)

    def sync(self, journal: Journal) -> None:
        sync_alias(journal, cast(Any, self))


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "runs")


def promoted(journal: Journal, number: int) -> Champion:
    place = journal.directory.parent / f"run{number}" / "pretrain"
    return promote(journal, str(training(place, str(number) * 64, [10])), "by hand")


def versions(journal: Journal) -> list[int]:
    return [line["version"] for line in journal.lines() if line["kind"] == REGISTERED]


def test_without_a_champion_nothing_is_asked(journal: Journal) -> None:
    registry = Registry()
    registry.sync(journal)
    assert registry == Registry()


def test_a_champion_is_registered_once_and_has_the_alias_each_time(journal: Journal) -> None:
    reigning, registry = promoted(journal, 1), Registry()
    for _ in range(2):
        registry.sync(journal)
    ((path, how),) = registry.registered
    assert (path, how["step"]) == (reigning.checkpoint, 10)
    assert how["tags"]["cloze.step"] == "10"
    assert (registry.alias, versions(journal)) == ([1, 1], [1])
    assert journal.version() == 1


def test_one_that_its_training_registered_is_not_registered_again(journal: Journal) -> None:
    registry = Registry(known={promoted(journal, 1).key: 7})
    registry.sync(journal)
    assert (registry.registered, registry.alias, versions(journal)) == ([], [7], [7])


@pytest.mark.parametrize("is_known", [True, False])
def test_one_whose_files_are_gone_keeps_its_version_or_is_an_error(
    journal: Journal, is_known: bool
) -> None:
    reigning = promoted(journal, 1)
    shutil.rmtree(reigning.checkpoint)
    shutil.rmtree(journal.directory / "champions", ignore_errors=True)
    registry = Registry(known={reigning.key: 7} if is_known else {})
    if is_known:
        registry.sync(journal)
        assert (registry.alias, versions(journal)) == ([7], [7])
    else:
        with pytest.raises(ClozeError, match="is gone and was never registered in MLflow"):
            registry.sync(journal)
        assert (registry, versions(journal)) == (Registry(), [])


def test_the_alias_follows_a_promotion_and_goes_back(journal: Journal) -> None:
    registry = Registry()
    for number in (1, 2):
        promoted(journal, number)
        registry.sync(journal)
    roll_back(journal, "it swears")
    registry.sync(journal)
    assert registry.alias == [1, 2, 1]
    assert len(registry.registered) == 2
    assert versions(journal)[:2] == [1, 2]


def test_a_champion_that_came_with_its_version_is_not_told_again(journal: Journal) -> None:
    promotion = champion(1)
    journal.append(night(promotion, version=5))
    assert journal.version() == 5
    registry = Registry(known={promotion.key: 5})
    registry.sync(journal)
    assert (registry.alias, versions(journal)) == ([5], [])
    journal.append(night(champion(2)))
    assert journal.version() is None


def test_who_did_it_by_hand_is_written_down(journal: Journal) -> None:
    who = f"{user_name()}@{socket.gethostname()}"
    assert promoted(journal, 1).why == f"by hand ({who})"
    promoted(journal, 2)
    roll_back(journal, "it swears")
    (line,) = [line for line in journal.lines() if line["kind"] == ROLLBACK]
    assert (line["why"], line["by"]) == ("it swears", who)


def test_scores_are_the_checkpoints_own_of_the_last_night(journal: Journal) -> None:
    places = [journal.directory.parent / f"run{number}" / "pretrain" for number in (1, 2, 3)]
    paths = [training(place, str(number) * 64, [10]) for number, place in enumerate(places, 1)]
    keys = [f"{number}" * 64 + "/checkpoints/step-00000010" for number in (1, 2)]

    def result(key: str, mean: float) -> dict[str, Any]:
        return {"key": key, "scores": {"sst2": {"mean": mean}}}

    journal.append(night(results=[result(keys[0], 0.81234), result(keys[1], 0.7)]))
    journal.append(night(results=[result(keys[0], 0.83339)]))
    journal.append(night(results=[result(keys[1], 0.9)]))
    found = [promote(journal, str(path), "by hand").scores for path in paths]
    assert found == [{"sst2": 83.34}, {"sst2": 90.0}, {}]
