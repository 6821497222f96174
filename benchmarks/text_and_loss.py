"""Whether a corpus stage's text is worth more: one model trained on the text of two versions of
this repository, at equal steps.

    python -m benchmarks.text_and_loss --old TREE --config CONFIG --vocab W/vocab --wikitext FILE,…
    --work DIR
        [--steps 2000] [--seeds 1,2] [--threads 1]

TREE is a work tree of the older version (`git worktree add --detach TREE COMMIT`); CONFIG a run's
config, of which the section `corpus` is taken. Each version makes its corpus; all the rest is this
version's: rows of 128 pieces by RoBERTa's recipe, one vocabulary, and the model `2 of 128` of
`benchmarks.speedrun`, so the two trainings differ in their text alone. Which documents are held
out follows from their ids, so they are the same ones in both. Every checkpoint is scored on the
held-out rows of both corpora, and on text that neither reader made: WikiText's files of Salesforce,
written as one writes (`it 's` as `it's`), without the sentences that lost a word (`<unk>`) and the
articles that the new corpus has.

What is there below `--work` is not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.speedrun import section
from cloze.core.artifacts.artifact import HELDOUT, read_manifest
from cloze.pipeline.corpus.files.shards import read_shard

REPOSITORY = Path(__file__).resolve().parents[1]
CLOZE = [sys.executable, "-c", "from cloze.flows.cli import entry; entry()"]
VERSIONS, TEXTS = ("old", "new"), ("old", "new", "wikitext")
ROWS = 2048  # scored of each text

_HEADING = re.compile(r"(=(?: =)*) (.+?) \1")
_ENDS = re.compile(r"(?<= [.!?] )|(?<= [.!?] \" )")
# What the tokenizer of WikiText's makers did, undone.
_JOINED = (
    (re.compile(r" @(.)@ "), r"\1"),
    (re.compile(r" ([,.;:!?%)\]]|'s\b|n't\b|'(?:re|ve|ll|d|m)\b)"), r"\1"),
    (re.compile(r"([(\[$£]) "), r"\1"),
    (re.compile(r"\" ([^\"]*?) \""), r'"\1"'),
    (re.compile(r"(?<=s) ' "), "' "),
)


def written(text: str) -> str:
    """A text of WikiText's as one writes it, without the sentences that lost a word."""
    text = "".join(
        sentence for sentence in _ENDS.split(text.strip() + " ") if "<unk>" not in sentence
    )
    for pattern, by in _JOINED:
        text = pattern.sub(by, text)
    return " ".join(text.split())


def articles(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """(title, paragraphs) of the articles of a file of WikiText's; headings go."""
    title, found = "", list[str]()
    for line in lines:
        heading = _HEADING.fullmatch(line.strip())
        if heading is None:
            found.append(written(line))
        elif heading[1] == "=":
            yield title, "\n\n".join(filter(None, found))
            title, found = heading[2], []
    yield title, "\n\n".join(filter(None, found))


def run(name: str, values: Mapping[str, Any], work: Path, tree: Path = REPOSITORY) -> Path:
    """Run a config's sections by the version of `tree`; where the artifacts are."""
    config = work / f"{name}.yaml"
    config.write_text(yaml.safe_dump({"name": name, **values}, sort_keys=False))
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [*CLOZE, "run", config.name, "--no-prefect"]
    completed = subprocess.run(
        command, cwd=work, env=environment, capture_output=True, text=True, check=False
    )
    if completed.returncode:
        sys.exit(f"{name}: {completed.stdout[-500:]}\n{completed.stderr[-3000:]}")
    return work / "runs" / name


def documents(corpus: Path) -> dict[str, tuple[str, str]]:
    """(split, title) of a corpus' documents by their ids."""
    found: dict[str, tuple[str, str]] = {}
    for path in sorted(corpus.glob("corpus-*.arrow")):
        table = read_shard(str(path)).select(["id", "split", "title"])
        found |= {row["id"]: (row["split"], row["title"]) for row in table.to_pylist()}
    return found


def neutral(files: list[str], titles: set[str], path: Path) -> int:
    """Write WikiText's articles but those of these titles as a file of records; how many."""
    rows = []
    for file in files:
        with open(file, encoding="utf-8") as lines:
            for title, text in articles(iter(lines)):
                if text and written(title).casefold() not in titles:
                    rows.append(
                        {"id": f"{Path(file).stem}-{len(rows)}", "title": title, "text": text}
                    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return len(rows)


def nodes(options: argparse.Namespace, corpora: Mapping[str, Path]) -> dict[str, Any]:
    """The sections of the run that trains and scores."""
    recipe = {
        "vocab": str(Path(options.vocab).resolve()),
        "recipe": "roberta",
        "length": 128,
        "mask_rate": 0.2,
    }
    values: dict[str, Any] = {
        "run": {"threads": options.threads, "resources": {"cpus": options.threads}}
    }
    values |= {
        f"dataset@{name}": {**recipe, "corpus": str(path), "mask_copies": 2}
        for name, path in corpora.items()
    }
    for seed in options.seeds.split(","):
        for text in VERSIONS:
            label = f"{text}-{seed}"
            training = {
                **section("adamw .002"),
                "steps": options.steps,
                "seed": int(seed),
                "heldout_rows": 0,
            }
            values[f"pretrain@{label}"] = {"dataset": f"dataset@{text}", **training}
            for other in TEXTS:
                scored = {
                    "checkpoint": f"pretrain@{label}",
                    "dataset": f"dataset@{other}",
                    "rows": ROWS,
                }
                values[f"perplexity@{label}-on-{other}"] = scored
    return values


def main() -> None:
    """Make, train, score, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--old", required=True, type=Path, help="a work tree of the older version")
    parser.add_argument(
        "--config", required=True, type=Path, help="a run's config; its section corpus"
    )
    parser.add_argument("--vocab", required=True, help="a vocab artifact, for all")
    parser.add_argument("--wikitext", required=True, help="files of WikiText, separated by commas")
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", default="1,2")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    corpus = yaml.safe_load(options.config.read_text())["corpus"]
    trees = {"old": options.old.resolve(), "new": REPOSITORY}
    corpora = {
        name: run(name, {"corpus": corpus}, work, tree) / "corpus" for name, tree in trees.items()
    }
    found = {name: documents(path) for name, path in corpora.items()}
    titles = {title.casefold() for one in found.values() for _, title in one.values()}
    count = neutral(options.wikitext.split(","), titles, work / "wikitext.jsonl")
    source = {"kind": "jsonl", "path": str(work / "wikitext.jsonl")}
    corpora["wikitext"] = (
        run("wikitext", {"corpus": {"sources": [source], "heldout_fraction": 0.99}}, work)
        / "corpus"
    )

    values = nodes(options, corpora)
    out = run("loss", values, work)
    held = {
        name: {key for key, (split, _) in one.items() if split == HELDOUT}
        for name, one in found.items()
    }
    both = len(held["old"] & held["new"])
    print(
        f"held out: {both:,} documents of both, {len(held['old'] - held['new'])} of the old "
        f"corpus alone,",
        end=" ",
    )
    print(f"{len(held['new'] - held['old'])} of the new one alone; {count} articles of WikiText")
    print("| trained on | bytes | " + " | ".join(f"on {text}" for text in TEXTS) + " |")
    print("|---" * (2 + len(TEXTS)) + "|")
    for text in VERSIONS:
        size = read_manifest(str(corpora[text])).summary["bytes"]
        cells = []
        for other in TEXTS:
            losses = [
                read_manifest(str(out / f"perplexity@{text}-{seed}-on-{other}")).summary["metrics"][
                    "heldout_loss"
                ]
                for seed in options.seeds.split(",")
            ]
            cells.append(
                f"{statistics.mean(losses):.4f} ({', '.join(f'{loss:.4f}' for loss in losses)})"
            )
        print(f"| {text} | {size / 1e6:.1f} MB | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
