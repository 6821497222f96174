"""What the stage corpus takes: it reads every source once, writes the text twice (parts, shards), and holds references to search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.core.cost import PROCESS_BYTES, Computer, Cost, Costs, Facts, Pace, without_start
from pipeline.core.execution import Execution
from pipeline.corpus.config import CorpusConfig

START = 4.0  # workers, hashing
SPEED = 5e5  # bytes of clean text a second and worker; prose is much faster, docstrings slower
# Clean text a byte of the file, roughly: Wikipedia's dumps (20 GB of bz2: 14 GB of text), crawled pages, books.
CLEAN = {
    ".bz2": 0.7,
    ".gz": 1.5,
    ".xz": 2.0,
    ".zst": 2.0,
    ".7z": 3.0,
    ".zip": 1.5,
    ".parquet": 1.4,
    ".epub": 1.5,
    ".xml": 0.4,
    ".py": 0.1,
}
WARC = 0.15
HTML, HTML_PACKED = 0.04, 0.3  # of rendered articles, with what stands around the text
LEFT = 0.9  # of a plain text
DOCUMENT, REFERENCE = 3000, 400  # bytes of a document's text, and of what is kept of it to find duplicates


def ahead(
    config: CorpusConfig, inputs: Mapping[str, Facts], execution: Execution, computer: Computer, before: Facts | None
) -> Cost:
    """From the sizes of the files; from the text that the same sources gave the last time, where there was one."""
    del inputs
    text, rough = clean_bytes(config), True
    if before is not None and _sources(before["config"]) == _sources(config.model_dump(mode="json")):
        text, rough = float(before["bytes"]), False
    width = min(execution.workers, computer.cpus)
    documents = int(text / DOCUMENT)
    compared = execution.driver_references if beyond_one_process(execution, documents) else documents
    return Cost(
        amount=text,
        speed=SPEED,
        start=START,
        width=width,
        disk_bytes=int(2.2 * text),
        memory_bytes=int((width + 1) * PROCESS_BYTES + compared * REFERENCE),
        makes={"bytes": text, "documents": text / DOCUMENT, "rough": rough},
        note=_compared(execution, documents),
    )


def beyond_one_process(execution: Execution, documents: int) -> bool:
    """Whether so many documents are compared on the engine. Beam's local runner would hold the whole shuffle in one process."""
    return execution.runner.lower() != "local" and documents > execution.driver_references


def _compared(execution: Execution, documents: int) -> str:
    """Where the search for duplicates runs, where that can be asked; documents are a guess from sizes of files."""
    most, local = execution.driver_references, execution.runner.lower() == "local"
    if local and documents <= most:
        return ""
    where = f"the shuffle of runner {execution.runner}" if beyond_one_process(execution, documents) else "one process"
    limit = "runner local always does so" if local else f"driver_references is {most:,}"
    return f"about {documents:,} documents are compared by {where} ({limit})"


def clean_bytes(config: CorpusConfig) -> float:
    """The text that may come of the sources, from their files' sizes and names alone."""
    found = 0.0
    for one in config.listed():
        name = one.slice.path.lower()
        share = next((share for ending, share in CLEAN.items() if name.endswith(ending)), LEFT)
        if "warc" in name:
            share = WARC
        elif one.slice.kind == "html":
            share = HTML_PACKED if name.endswith((".gz", ".tgz", ".bz2", ".xz", ".zst", ".zip")) else HTML
        elif one.slice.kind == "docstrings":
            share = CLEAN[".py"]
        span = one.slice.span
        found += share * (one.slice.size if span is None else span[1] - span[0])
    return found


def _sources(config: Mapping[str, Any]) -> list[Any]:
    return sorted((source["kind"], source["path"]) for source in config["sources"])


def afterwards(facts: Facts) -> Pace | None:
    """Bytes of clean text a second and worker."""
    workers = int(facts["execution"].get("workers", 1))
    return Pace(amount=float(facts["bytes"]), seconds=without_start(facts["seconds"], START), width=workers)


COSTS = Costs(ahead=ahead, afterwards=afterwards)
