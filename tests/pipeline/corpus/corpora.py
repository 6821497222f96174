"""Corpus artifacts for tests: made by the stage from sources, or written as it would write them
from lists of documents.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cloze.core import random_keys
from cloze.core.arrow import write_arrow
from cloze.core.artifacts import artifact
from cloze.core.artifacts.artifact import HELDOUT, TRAIN, shard_name
from cloze.core.config import parse_config
from cloze.core.stages.execute import BuildResult, execute
from cloze.core.stages.execution import Execution
from cloze.pipeline.corpus.config import CorpusConfig
from cloze.pipeline.corpus.files.intermediate import CORPUS
from cloze.pipeline.corpus.stage import STAGE
from tests import warm


def write_corpus(
    directory: Path | str,
    documents: Sequence[tuple[str, Sequence[str]]],
    shards: int = 1,
    heldout: Sequence[str] = (),
    scrambled: bool = False,
    schema: pa.Schema = CORPUS,
) -> str:
    """Write (id, sentences) documents as a corpus artifact.

    Args:
        directory: where.
        documents: their ids and sentences.
        shards: files they are spread over, by key.
        heldout: ids of the documents of the held-out split.
        scrambled: write each shard's documents in another order than that of their keys.
        schema: with some of the columns of CORPUS.
    """
    path = str(directory)
    keyed = sorted(
        (random_keys.document_key(name), name, list(sentences)) for name, sentences in documents
    )
    for number in range(shards):
        rows = [row for row in keyed if int(random_keys.splitmix64(row[0])) % shards == number]
        if scrambled:
            rows = rows[1::2] + rows[0::2]
        columns = {
            "key": [key for key, _, _ in rows],
            "id": [name for _, name, _ in rows],
            "source": ["books"] * len(rows),
            "title": [name for _, name, _ in rows],
            **{name: [""] * len(rows) for name in ("url", "licence", "origin")},
            "infobox": [[] for _ in rows],
            "split": [HELDOUT if name in heldout else TRAIN for _, name, _ in rows],
            "sentences": [sentences for _, _, sentences in rows],
            "paragraphs": [[0] for _ in rows],
        }
        table = pa.table({name: columns[name] for name in schema.names}, schema=schema)
        write_arrow(f"{path}/{shard_name('corpus', number, shards)}", schema, table.to_batches())
    manifest = artifact.Manifest(
        stage="corpus",
        version=1,
        fingerprint=artifact.fingerprint(
            "corpus", 1, {"documents": keyed, "heldout": sorted(heldout), "shards": shards}, {}
        ),
        parents={},
        config={},
        files=artifact.hash_files(path, artifact.data_files(path)),
        rows=len(keyed),
    )
    artifact.write_manifest(path, manifest)
    return path


def made_documents(count: int = 40, sentences: int = 30) -> list[tuple[str, list[str]]]:
    """Documents of invented sentences, the same on every machine."""
    syllables = [
        "ba",
        "co",
        "de",
        "fi",
        "gu",
        "ha",
        "li",
        "mo",
        "ne",
        "pu",
        "ra",
        "si",
        "to",
        "ve",
        "wu",
        "za",
    ]

    def word(number: int) -> str:
        parts = 1 + number % 3
        return "".join(syllables[(number // 7**place) % len(syllables)] for place in range(parts))

    documents = []
    for document in range(count):
        text = []
        for sentence in range(sentences):
            length = 3 + int(
                random_keys.randint_below(random_keys.fold_in(1, document, sentence), 25)
            )
            draws = random_keys.uniform(random_keys.fold_in(2, document, sentence, range(length)))
            words = [word(int(400 * draw**2)) for draw in draws]  # frequent words and rare ones
            text.append(" ".join(words).capitalize() + (", and so on." if length % 5 == 0 else "."))
        documents.append((f"books/made.txt/{document}", text))
    return documents


def make(out: Path | str, *sources: str, workers: int = 1, **settings: Any) -> BuildResult:
    """Run the stage on sources written `kind=path`."""
    listed = [dict(zip(("kind", "path"), source.split("=", 1), strict=True)) for source in sources]
    config = parse_config(CorpusConfig, {"sources": listed, **settings}, "corpus")
    with warm.executable() if workers > 1 else nullcontext():
        return execute(STAGE, config, {}, str(out), execution=Execution(workers=workers))


def rows(result: BuildResult, pattern: str = "corpus-*.arrow") -> list[dict[str, Any]]:
    """The rows of an artifact's files."""
    found = []
    for path in sorted(Path(result.artifact).glob(pattern)):
        found += pa.ipc.open_file(path).read_all().to_pylist()
    return found


def prose(number: int, sentences: int = 12) -> str:
    """A text of invented words that passes the filters; another one for another number."""
    words = np.random.default_rng(number).integers(0, 26, (sentences, 14))
    lines = [
        " ".join("aeiou"[n % 5].join("bcdfghklmnprst"[n % 14] * 2) + "xyz"[n % 3] for n in line)
        for line in words
    ]
    return "\n\n".join(f"Once {line} it was number {number}." for line in lines)


def write_jsonl(path: Path, *texts: str, bad: int = 0) -> Path:
    """A file of documents d0, d1, …, and of lines that are no JSON."""
    lines = [
        json.dumps({"id": f"d{number}", "title": f"Title {number}", "text": text})
        for number, text in enumerate(texts)
    ]
    path.write_text("\n".join([*lines, *['{"text": '] * bad]) + "\n")
    return path
