"""What is timed, each in a process of its own: a stage from nothing to a finished artifact, and the
tokenizer alone.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.data.measure import Clock

BATCH_SENTENCES = 4096


def size_of(directory: str, suffix: str = "") -> int:
    """Bytes of the files below it."""
    return sum(
        path.stat().st_size for path in Path(directory).rglob(f"*{suffix}") if path.is_file()
    )


def corpus(
    sources: Sequence[Mapping[str, str]],
    size: int,
    config: Mapping[str, Any],
    workers: int,
    out: str,
    keep: bool = False,
) -> dict[str, Any]:
    """The corpus stage. Work: bytes of input, unpacked."""
    from cloze.core.stages.execute import execute
    from cloze.core.stages.execution import Execution
    from cloze.pipeline.corpus.stage import STAGE, CorpusConfig

    made = CorpusConfig.model_validate({"sources": list(sources), **config})
    with Clock() as clock:
        manifest = execute(STAGE, made, {}, out, execution=Execution(workers=workers)).manifest
    figures = {name: manifest.summary[name] for name in ("documents", "bytes", "dropped")}
    if not keep:
        shutil.rmtree(out)
    return clock.sample(size, **figures)


def dataset(
    corpus: str, tokenizer: str, config: Mapping[str, Any], workers: int, out: str
) -> dict[str, Any]:
    """The dataset stage. Work: pieces of text read."""
    from cloze.core.stages.execute import execute
    from cloze.core.stages.execution import Execution
    from cloze.pipeline.dataset.config import DatasetConfig
    from cloze.pipeline.dataset.stage import STAGE

    made = DatasetConfig.model_validate(dict(config))
    with Clock() as clock:
        execution = Execution(workers=workers)
        manifest = execute(
            STAGE, made, {"corpus": corpus, "vocab": tokenizer}, out, execution=execution
        ).manifest
    shards = sum(entry.size for entry in manifest.files if entry.path.endswith(".arrow"))
    shutil.rmtree(out)
    return clock.sample(manifest.tokens, rows=manifest.rows, shards=shards)


def tokenizer_alone(corpus: str, tokenizer: str, parallel: bool) -> dict[str, Any]:
    """Hugging Face tokenizers' `encode_batch_fast` on a corpus's sentences, not even the ids taken
    out. Work: pieces.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if parallel else "false"
    from cloze.pipeline.tokenizer import load

    opened = load(tokenizer)
    texts = [
        f" {text}" if behind and opened.kind == "bpe" else text
        for text, behind in sentences(corpus)
    ]
    pieces = 0
    with Clock() as clock:
        for first in range(0, len(texts), BATCH_SENTENCES):
            encodings = opened.backend.encode_batch_fast(
                texts[first : first + BATCH_SENTENCES], add_special_tokens=False
            )
            pieces += sum(map(len, encodings))
    return clock.sample(pieces)


def sentences(corpus: str) -> Iterator[tuple[str, bool]]:
    """All sentences of a corpus artifact, and whether each stands behind another one of its
    document.
    """
    for document in documents(corpus):
        for number, text in enumerate(document):
            yield text, number > 0


def documents(corpus: str) -> Iterator[list[str]]:
    """The sentences of each document."""
    from cloze.core.arrow import read_arrow
    from cloze.pipeline.corpus.files.shards import CorpusShards

    shards = CorpusShards.open(corpus)
    for name in shards.names:
        yield from read_arrow(shards.file(name))["sentences"].to_pylist()
