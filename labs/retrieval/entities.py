"""The stage entities: named entities and dates of a corpus, the salient spans of REALM.

Named entities are those of a tagging checkpoint; dates are found by a rule (Guu et al. 2020,
section 3.4: "we use a BERT-based tagger … to identify named entities, and a regular expression to
identify dates"). A file per corpus shard, see `cloze.labs.retrieval.salient`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from cloze.core import storage
from cloze.core.arrow import read_arrow, write_arrow
from cloze.core.stages.stage import BuildContext, StageResult
from cloze.labs.retrieval.salient import SPANS, spans_file_name
from cloze.labs.retrieval.stages import EntitiesConfig
from cloze.labs.serving.predictors import TokenClassificationPipeline
from cloze.model.tasks.files import corpus_shards
from cloze.model.train.distributed import init_distributed
from cloze.model.train.precision import resolve

SENTENCES = 2048  # tagged at once
DATE = "DATE"
_MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
_MONTH = f"(?:{_MONTHS})"
_DAY, _YEAR = r"\d{1,2}(?:st|nd|rd|th)?", r"(?:1[1-9]|20)\d\d"
DATES = re.compile(
    rf"\b(?:{_DAY}(?: of)? {_MONTH}(?:,? {_YEAR})?|{_MONTH} {_DAY}(?:,? {_YEAR})?"
    rf"|{_MONTH},? {_YEAR}|{_YEAR}-\d\d-\d\d|{_YEAR})\b"
)


def with_dates(text: str, entities: Sequence[dict[str, Any]]) -> Iterator[tuple[int, int, str]]:
    """Iterate over start, end and type of entities and dates, by position.

    A date that touches an entity is left out.
    """
    spans = [(entity["start"], entity["end"], str(entity["type"])) for entity in entities]
    for match in DATES.finditer(text):
        start, end = match.span()
        if all(end <= begin or start >= stop for begin, stop, _ in spans):
            spans.append((start, end, DATE))
    yield from sorted(spans)


def run(config: EntitiesConfig, build: BuildContext) -> StageResult:
    """Tag every sentence of the corpus; each rank processes its own shards.

    Raises:
        UsageError: the checkpoint's task is no tagging.
        DataError: corpus or checkpoint is missing.
    """
    path = build.inputs["corpus"]
    names = corpus_shards(path)
    world = init_distributed(build.execution)
    precision = resolve(config.precision, world.device)
    tagger = TokenClassificationPipeline(
        build.inputs["checkpoint"], precision=precision, device=world.device
    )
    totals: Counter[str] = Counter()
    for number, name in enumerate(names[world.rank :: world.size]):
        build.report.progress(number, len(names) / world.size, "shards", {})
        # Written last, so an interrupted attempt has completed the shard.
        counts_file = storage.join(build.scratch, f"{name}.json")
        if not storage.exists(counts_file):
            target = build.file(spans_file_name(name))
            counts = _tag_shard(tagger, storage.join(path, name), target)
            storage.write_bytes(counts_file, json.dumps(counts).encode())
        totals.update(storage.read_json(counts_file))
    gathered = world.gathered(dict(totals))
    totals = sum((Counter(counts) for counts in gathered), Counter())
    sentences = totals.pop("sentences", 0)
    summary = {"sentences": sentences, "spans": totals.total(), "types": dict(totals)}
    return StageResult(rows=totals.total(), summary=summary)


def _tag_shard(tagger: TokenClassificationPipeline, source: str, target: str) -> dict[str, int]:
    """Write the spans of a shard; return the numbers of its sentences, and of spans by type."""
    table = read_arrow(source)
    places, texts = list[tuple[int, int]](), list[str]()
    for key, sentences in zip(
        table["key"].to_pylist(), table["sentences"].to_pylist(), strict=True
    ):
        places += ((key, number) for number in range(len(sentences)))
        texts += sentences
    rows: list[tuple[Any, ...]] = []
    for begin in range(0, len(texts), SENTENCES):
        batch = slice(begin, begin + SENTENCES)
        tagged = zip(places[batch], texts[batch], tagger.tag_batch(texts[batch]), strict=True)
        rows += (
            (*place, *span)
            for place, text, entities in tagged
            for span in with_dates(text, entities)
        )
    columns = list(zip(*rows, strict=True)) or [()] * len(SPANS)
    write_arrow(target, SPANS, pa.table(list(map(list, columns)), SPANS).to_batches())
    return {"sentences": len(texts), **Counter(kind for *_, kind in rows)}
