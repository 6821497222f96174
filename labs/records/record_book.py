"""Record books: trainings on one text, judged by fixed rules (docs/explanation/speedrun.md).

A book is a directory. `book.yaml` has the hashes of the text, the tracks with their rules, and the
records. `logs/SHA256.json.gz` is the evidence of one run of a record: its held-out loss, scored
when it was entered, and the manifests of all artifacts that it was made from, with the metrics and
costs of its trainings. Everything else follows from these, so a book can be verified by itself.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

from cloze.core import storage
from cloze.core.artifacts import artifact
from cloze.core.artifacts.fingerprints import artifact_fingerprint_of
from cloze.core.artifacts.lineage import finished_ancestors
from cloze.core.config import parse_config
from cloze.core.errors import DataError, UsageError, did_you_mean

FILE, LOGS = "book.yaml", "logs"
SIGNIFICANT, FEWEST_SEEDS = 0.01, 3
STAGES = {"corpus", "vocab", "dataset", "pretrain", "merge"}  # that may be in a run
COLUMNS = "record", "held-out loss, by seed", "steps", "core-seconds", "lines", "p"
Evidence = dict[str, Any]  # `loss`; `artifacts`: manifests, the run's own first


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Track(_Strict):
    """Rules of a track: the lowest mean loss wins; with `goal`, the fewest steps to it.

    Attributes:
        goal: nats that the mean loss must be below.
        steps, core_seconds, tokens_per_step: limits of each run, padding included.
        line_cost: nats, or steps with `goal`, that each product line costs that a record adds.
    """

    title: str
    goal: float | None = None
    steps: float | None = None
    core_seconds: float | None = None
    tokens_per_step: float | None = None
    line_cost: float = 0.0


class Record(_Strict):
    """A record; `lines`: product lines that it adds; `logs`: sha256 of the log of each run."""

    track: str
    name: str
    date: str
    commit: str
    lines: int
    logs: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the log of a run says; `checkpoint` is the sha256 of each file of weights."""

    seed: int
    loss: float
    steps: int
    core_seconds: float
    checkpoint: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A record that was checked; `p` is None for the first one of a track without a goal."""

    record: Record
    runs: list[Run]
    p: float | None


class Book(_Strict):
    """A record book.

    Attributes:
        text: content hashes of the corpus and the vocabulary, by stage.
        heldout: content hash of the dataset whose held-out rows are scored.
    """

    text: dict[str, str]
    heldout: str
    tracks: dict[str, Track]
    records: list[Record] = []

    @classmethod
    def load(cls, directory: Path) -> Book:
        """Read a book; raise `UsageError` if it does not exist or is not valid."""
        path = directory / FILE
        try:
            values = yaml.safe_load(path.read_text())
        except (OSError, yaml.YAMLError) as error:
            raise UsageError(f"{path} is no record book; name its directory with --book") from error
        return parse_config(cls, values if isinstance(values, Mapping) else {}, str(path))

    def verify(self, directory: Path) -> list[Entry]:
        """Check every record against its logs, the rules, and the records before it.

        Raises:
            DataError: a log is missing or was changed, or a record breaks a rule.
        """
        entries: list[Entry] = []
        for record in self.records:
            evidences = []
            for log in record.logs:
                path = directory / LOGS / f"{log}.json.gz"
                content = _unpacked(path)
                if hashlib.sha256(content).hexdigest() != log:
                    raise DataError(f"{path}, a log of {record.name!r}, is missing or was changed")
                evidences.append(json.loads(content))
            try:
                entries.append(self.judge(record, evidences, entries))
            except UsageError as error:
                raise DataError(f"record {record.name!r} breaks a rule: {error}") from error
        return entries

    def enter(self, record: Record, evidences: Sequence[Evidence], directory: Path) -> None:
        """Add a record, and write the book and the record's logs."""
        for evidence in evidences:
            content = artifact.canonical_json(evidence).encode()
            record.logs.append(hashlib.sha256(content).hexdigest())
            packed = gzip.compress(content, mtime=0)
            storage.write_bytes(str(directory / LOGS / f"{record.logs[-1]}.json.gz"), packed)
        self.records.append(record)
        text = yaml.safe_dump(self.model_dump(exclude_none=True), sort_keys=False)
        storage.write_bytes(str(directory / FILE), text.encode())

    def judge(
        self, record: Record, evidences: Sequence[Evidence], earlier: Sequence[Entry]
    ) -> Entry:
        """Check a record by the rules of its track; `p` is that of a mean loss below its rival's.

        The rival is the last record of the track (Welch's one-sided t test), or the goal (the
        one-sided t test of one sample).

        Raises:
            UsageError: it is no record.
        """
        from scipy.stats import ttest_1samp, ttest_ind  # slow imports

        runs = [self.run_of(record.track, evidence) for evidence in evidences]
        rules, losses = self.tracks[record.track], [run.loss for run in runs]
        recipes = [
            [(one["stage"], {**one["config"], "seed": 0}) for one in evidence["artifacts"]]
            for evidence in evidences
        ]
        if any(recipe != recipes[0] for recipe in recipes):
            raise UsageError("the runs have different configs; those of a record differ in seeds")
        seeds = sorted({run.seed for run in runs})
        if len(seeds) < max(FEWEST_SEEDS, len(runs)):
            raise UsageError(f"{len(runs)} runs have seeds {seeds}; give {FEWEST_SEEDS} different")
        same = [entry for entry in earlier if entry.record.track == record.track]
        rival, fine = same[-1] if same else None, record.lines * rules.line_cost
        if rules.goal is not None:
            steps = max(run.steps for run in runs) + fine
            if rival is not None and steps >= max(run.steps for run in rival.runs):
                raise UsageError(f"{steps:g} steps are no fewer than {rival.record.name!r} takes")
            p = float(ttest_1samp(losses, rules.goal, alternative="less").pvalue)
        elif rival is not None:
            others = [run.loss - fine for run in rival.runs]
            p = float(ttest_ind(losses, others, equal_var=False, alternative="less").pvalue)
        else:
            return Entry(record, runs, None)
        if not p < SIGNIFICANT:
            bar = repr(rival.record.name) if rules.goal is None and rival else rules.goal
            raise UsageError(
                f"a mean loss of {fmean(losses):.4f}, with {record.lines} lines added, is not "
                f"surely below {bar} (p = {p:.2g}, {SIGNIFICANT} is the limit); improve it, or "
                f"train more seeds"
            )
        return Entry(record, runs, p)

    def run_of(self, track: str, evidence: Evidence) -> Run:
        """Return what the evidence says; raise `UsageError` if it breaks a rule of the track."""
        if track not in self.tracks:
            raise UsageError(f"there is no track {track!r}; {did_you_mean(track, self.tracks)}")
        rules, manifests = self.tracks[track], evidence["artifacts"]
        known = {one["fingerprint"] for one in manifests}
        stages = {one["stage"] for one in manifests}
        if not {"corpus", "vocab", "dataset", "pretrain"} <= stages <= STAGES:
            raise UsageError(f"a run is made by {sorted(stages)}, not by {sorted(STAGES)} near it")
        for one in manifests:
            stage, parents = one["stage"], one["parents"].items()
            if self.text.get(stage, one["content_sha256"]) != one["content_sha256"]:
                raise UsageError(f"a run is made from another {stage} than the book's text")
            for key, parent in parents if stage != "corpus" else ():
                if artifact_fingerprint_of(parent) not in known:
                    raise UsageError(f"the {key} of a run's {stage} is not near it")
        own, trainings = manifests[0], [one for one in manifests if one["stage"] == "pretrain"]
        longest = max(one["config"].get("length", 0) for one in manifests)
        batch = longest * max(one["config"]["global_batch"] for one in trainings)
        weights = f"{own['summary']['checkpoint']}/model"  # a file of each rank
        run = Run(
            seed=trainings[0]["config"]["seed"],
            loss=evidence["loss"],
            steps=sum(one["summary"]["steps"] - one["summary"]["begun_at"] for one in trainings),
            core_seconds=sum(one["cost"][-1]["cpu_seconds"] for one in trainings),
            checkpoint=" ".join(
                row["sha256"] for row in own["files"] if row["path"].startswith(weights)
            ),
        )
        for name, value, limit in (
            ("steps", run.steps, rules.steps),
            ("core-seconds", run.core_seconds, rules.core_seconds),
            ("tokens a step", batch, rules.tokens_per_step),
        ):
            if limit is not None and value > limit:
                raise UsageError(f"a run took {value:,} {name}; {track} allows {limit:,g}")
        return run


def collect(path: str) -> list[dict[str, Any]]:
    """Return the manifests of a run and its ancestors, with the logs of their trainings.

    Raises:
        DataError: a file of one of them is not as its manifest says.
    """
    manifests = []
    for directory in finished_ancestors(path):
        content = json.loads(storage.read_text(storage.join(directory, artifact.MANIFEST)))
        content["content_sha256"] = content_hash(directory)
        for name in ("metrics", "cost") if content["stage"] == "pretrain" else ():
            lines = storage.read_text(storage.join(directory, f"{name}.jsonl")).splitlines()
            content[name] = [json.loads(line) for line in lines]
        manifests.append(content)
    return manifests


def content_hash(path: str) -> str:
    """Return the content hash of an artifact; raise `DataError` if a file was changed."""
    verification = artifact.verify(path)
    if not verification.ok:
        raise DataError(f"{path} was changed: {verification.errors[0]}")
    return verification.content_sha256


def _unpacked(path: Path) -> bytes:
    """Return the bytes of a log; none if it is missing or damaged."""
    try:
        return gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error):
        return b""


def markdown(book: Book, entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the tables of records as Markdown, the newest record of a track first."""
    for name, track in book.tracks.items():
        yield f"### `{name}`: {track.title}\n"
        yield f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"
        for entry in reversed([one for one in entries if one.record.track == name]):
            record, losses = entry.record, [run.loss for run in entry.runs]
            cells = (
                f"{record.name} ({record.date}, {record.commit[:8]})",
                f"**{fmean(losses):.3f}** ± {stdev(losses):.3f}: "
                + ", ".join(f"{loss:.3f}" for loss in losses),
                f"{max(run.steps for run in entry.runs):,}",
                f"{fmean(run.core_seconds for run in entry.runs):,.0f}",
                f"{record.lines}",
                "first" if entry.p is None else f"{entry.p:.2g}",
            )
            yield f"| {' | '.join(cells)} |"
        yield ""
