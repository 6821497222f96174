"""What the benchmarks read, made once and kept in the directory of `--work`: raw sources, corpora,
tokenizers, datasets.

Each is made by a process of its own: the one that measures stays small, because a child's peak
memory counts from its parent's.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.data.measure import Case, run
from benchmarks.data.sources import Raw

MARK = "made.json"
TOKENIZERS = ("wordpiece", "bpe")


@dataclass(frozen=True, slots=True)
class Work:
    """The directory of `--work`, and that of `--data`."""

    path: str
    data: str

    def scratch(self, name: str) -> str:
        """A directory that does not exist."""
        path = f"{self.path}/scratch/{name}"
        shutil.rmtree(path, ignore_errors=True)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return path

    def raw(self, kind: str, megabytes: float) -> list[Raw]:
        """A source of `sources.KINDS`, or `mix`."""
        name = f"raw/{kind}-{megabytes:g}"
        made = self._made(
            name, "make_raw", {"kind": kind, "size": megabytes * 1e6, "data": self.data}
        )
        return [Raw(**raw) for raw in made["raws"]]

    def corpus(self, megabytes: float, kind: str = "mix") -> str:
        """A corpus artifact of this much raw text."""
        sources = [{"kind": raw.kind, "path": raw.path} for raw in self.raw(kind, megabytes)]
        self._made(f"corpora/{kind}-{megabytes:g}", "make_corpus", {"sources": sources})
        return f"{self.path}/corpora/{kind}-{megabytes:g}/artifact"

    def tokenizer(self, name: str) -> str:
        """wordpiece: BERT's uncased vocabulary; bpe: RoBERTa's kind and size, trained on 25 MB of
        the mix.
        """
        arguments: dict[str, Any]
        if name == "bpe":
            arguments = {"corpus": self.corpus(25), "config": {"kind": "bpe"}}
        else:
            vocabulary = f"{self.data}/vocab/bert_base_uncased_vocab.txt"
            arguments = {"corpus": None, "config": {"import_path": vocabulary, "lowercase": True}}
        self._made(f"tokenizers/{name}", "make_tokenizer", arguments)
        return f"{self.path}/tokenizers/{name}/artifact"

    def dataset(self, megabytes: float, tokenizer: str, config: Mapping[str, Any]) -> str:
        name = f"datasets/mix-{megabytes:g}-{tokenizer}-" + "-".join(
            str(value) for value in config.values()
        )
        arguments = {
            "corpus": self.corpus(megabytes),
            "tokenizer": self.tokenizer(tokenizer),
            "config": dict(config),
        }
        self._made(name, "make_dataset", arguments)
        return f"{self.path}/{name}/artifact"

    def _made(self, name: str, function: str, arguments: dict[str, Any]) -> dict[str, Any]:
        directory = f"{self.path}/{name}"
        mark = Path(directory, MARK)
        if not mark.exists():
            shutil.rmtree(directory, ignore_errors=True)
            os.makedirs(directory)
            case = Case(
                function=f"benchmarks.data.prepared:{function}",
                arguments={"out": directory, **arguments},
                cores=None,
            )
            mark.write_text(json.dumps(run(case).more), encoding="utf-8")
        found: dict[str, Any] = json.loads(mark.read_text(encoding="utf-8"))
        return found


def _answer(**more: Any) -> dict[str, Any]:
    return {"wall": 0.0, "cpu": 0.0, "more": more}


def make_raw(out: str, kind: str, size: float, data: str) -> dict[str, Any]:
    from benchmarks.data import sources

    files = f"{out}/files"
    made = (
        sources.make_mix(size, files, data)
        if kind == "mix"
        else [sources.make(kind, size, files, data)]
    )
    return _answer(raws=[asdict(raw) for raw in made])


def make_corpus(out: str, sources: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    from cloze.core.stages.execute import execute
    from cloze.pipeline.corpus.stage import STAGE, CorpusConfig

    config = CorpusConfig.model_validate({"sources": list(sources)})
    return _answer(documents=execute(STAGE, config, {}, f"{out}/artifact").manifest.rows)


def make_tokenizer(out: str, corpus: str | None, config: Mapping[str, Any]) -> dict[str, Any]:
    from cloze.core.stages.execute import execute
    from cloze.pipeline.vocab.config import VocabConfig
    from cloze.pipeline.vocab.stage import STAGE

    made = execute(
        STAGE,
        VocabConfig.model_validate(dict(config)),
        {"corpus": corpus} if corpus else {},
        f"{out}/artifact",
    )
    return _answer(summary=made.manifest.summary)


def make_dataset(
    out: str, corpus: str, tokenizer: str, config: Mapping[str, Any]
) -> dict[str, Any]:
    from cloze.core.stages.execute import execute
    from cloze.pipeline.dataset.config import DatasetConfig
    from cloze.pipeline.dataset.stage import STAGE

    inputs = {"corpus": corpus, "vocab": tokenizer}
    return _answer(
        rows=execute(
            STAGE, DatasetConfig.model_validate(dict(config)), inputs, f"{out}/artifact"
        ).manifest.rows
    )
