"""The three data stages by the command line, and what came of them."""

from __future__ import annotations

from pathlib import Path

from cloze.core import storage
from cloze.core.artifacts import artifact
from tests.flows.test_cli import Done, cloze

STAGES = ("corpus", "vocab", "dataset")


def stage(name: str, out: str, options: list[str], library: str, samples: Path) -> Done:
    """Run one stage with its inputs next to it."""
    wikipedia = samples / "wikipedia" / "samplewiki-pages-articles.xml.bz2"
    verbs = {
        "corpus": [
            "--source",
            f"books={library}",
            "--source",
            f"wikipedia={wikipedia}",
            "--set=shard_bytes=60000",
        ],
        "vocab": ["--corpus", storage.join(out, "corpus"), "--size", "2000"],
        "dataset": [
            "--corpus",
            storage.join(out, "corpus"),
            "--tokenizer",
            storage.join(out, "vocab"),
            "--length",
            "64",
            "--mask-copies",
            "2",
        ],
    }
    return cloze(
        name,
        *verbs[name],
        "--out",
        storage.join(out, name),
        "--json",
        *options,
        cwd=Path(samples).parent,
        timeout=900,
    )


def run(
    out: str, options: list[str], library: str, samples: Path, stages: tuple[str, ...] = STAGES
) -> dict[str, str]:
    """The content hash of each stage's artifact, verified."""
    for name in stages:
        done = stage(name, out, options, library, samples)
        assert done.returncode == 0, done.stderr
    found = {}
    for name in stages:
        verified = artifact.verify(storage.join(out, name))
        assert verified.ok, verified.errors
        found[name] = verified.content_sha256
    return found
