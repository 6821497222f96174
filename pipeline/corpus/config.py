"""Config of the corpus stage: the options of all readers, cleaning steps and deduplication."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, PrivateAttr, model_validator

from cloze.core.artifacts import fingerprints
from cloze.core.errors import UsageError, did_you_mean
from cloze.core.options import merge_option_classes
from cloze.core.plugins import Installed
from cloze.core.stages.cost import (
    PROCESS_BYTES,
    CostEstimate,
    CostModel,
    MeasuredThroughput,
    Metadata,
    PlannedBuild,
)
from cloze.core.stages.execution import BeamOptions
from cloze.pipeline.corpus.options import MAXIMUM_UNREADABLE_SHARE, DedupOptions, MixtureOptions
from cloze.pipeline.corpus.readers import READERS
from cloze.pipeline.corpus.sources import (
    ListedSlice,
    Source,
    SourceListing,
    list_sources,
    source_fingerprints,
)
from cloze.pipeline.corpus.steps.chain import STEPS, TextConfig, plugin_steps

SOURCE_METADATA = ("licence", "name", "url", "date")

if TYPE_CHECKING:

    class _Options(DedupOptions, MixtureOptions, TextConfig): ...
else:
    _Options = merge_option_classes(
        "_Options",
        [
            *(reader.options for reader in READERS.loaded().values()),
            DedupOptions,
            MixtureOptions,
            TextConfig,
        ],
        __name__,
    )


class CorpusConfig(_Options):
    """Config of the stage `corpus`: sources and the options of reading, cleaning and writing."""

    sources: tuple[Source, ...] = Field(
        min_length=1, examples=["[{kind: wikipedia, path: DUMP.xml.bz2}]"]
    )
    """Sources to read, in any order."""

    heldout_fraction: float = Field(default=0.02, ge=0, lt=1)
    """Share of documents in the held-out split."""

    shard_bytes: int = Field(default=4 << 20, ge=1 << 10, le=1 << 30)
    """Approximate bytes of text per shard; above 9,600 shards more."""

    max_unreadable_share: float | None = Field(default=None, ge=0, le=1)
    """Abort if more than this share of files, pages and lines is unreadable. Default: 0.5, or 1
    with --on-error quarantine."""

    _listed: SourceListing | None = PrivateAttr(None)
    _identify: Callable[[str], str] | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _weighs_what_is_read(self) -> Self:
        self.check_kinds(sorted({source.kind for source in self.sources}))
        return self

    def plugin_rows(self) -> dict[str, Installed]:
        """Add the cleaning steps of plug-ins that are on."""
        steps = {
            f"steps/{name}": STEPS.owners[name]
            for name, kind in plugin_steps().items()
            if kind.is_on(self)
        }
        return {**super().plugin_rows(), **steps}

    @property
    def unreadable_share(self) -> float:
        """Return `max_unreadable_share`, or its default."""
        default = MAXIMUM_UNREADABLE_SHARE if self.on_error == "stop" else 1.0
        return default if self.max_unreadable_share is None else self.max_unreadable_share

    @staticmethod
    def with_columns(
        sources: Iterable[Mapping[str, Any]], columns: Mapping[str, str]
    ) -> list[dict[str, Any]]:
        """Return the sources as plain dicts; those with columns get `columns` as their `fields`.

        Raises:
            UsageError: no source has columns.
        """
        sources = list(sources)
        structured = [kind for kind, reader in READERS.loaded().items() if reader.has_columns]
        if not any(source["kind"] in structured for source in sources):
            raise UsageError(
                f"--column needs a source with columns ({', '.join(structured)}), but none is "
                f"given. Remove --column"
            )
        return [
            {**source, "fields": columns} if source["kind"] in structured else dict(source)
            for source in sources
        ]

    @staticmethod
    def with_origins(
        sources: Iterable[Mapping[str, Any]], metadata: Iterable[tuple[str, str, str]]
    ) -> list[dict[str, Any]]:
        """Return the sources as plain dicts with the provenance in `metadata`.

        Args:
            metadata: (kind, field, value); applies to all sources of the kind. The field is one of
                `SOURCE_METADATA`.

        Raises:
            UsageError: no source is of the kind, or the field is unknown.
        """
        plain_sources = [dict(source) for source in sources]
        for kind, name, value in metadata:
            if name not in SOURCE_METADATA:
                raise UsageError(
                    f"--source-metadata {kind}.{name}: unknown field {name!r}; "
                    f"{did_you_mean(name, SOURCE_METADATA)}"
                )
            matching = [source for source in plain_sources if source["kind"] == kind]
            if not matching:
                kinds = sorted({source["kind"] for source in plain_sources})
                raise UsageError(
                    f"--source-metadata {kind}.{name}: no source is of kind {kind!r}; "
                    f"{did_you_mean(kind, kinds)}"
                )
            for source in matching:
                source[name] = value
        return plain_sources

    def external_fingerprints(self) -> dict[str, str]:
        """Return the fingerprints of the sources (by kind), task files, and files of steps.

        `source/KIND` and `decontaminate` are one hash over the names and bytes of all files,
        independent of order and directory. The sources are listed and hashed again.
        """
        hashes = source_fingerprints(self.listing(again=True).slices)
        if self.decontaminate:
            hashes["decontaminate"] = fingerprints.combine_hashes(
                {(name, sha256) for name, _, sha256 in self.task_files()}
            )
        for name in self.path_fields():
            path = getattr(self, name)
            if name not in ("sources", "decontaminate") and path is not None:
                hashes[name] = fingerprints.input_fingerprint(path)
        return hashes

    def listed(self) -> tuple[ListedSlice, ...]:
        """Return the slices of the sources, see `listing`."""
        return self.listing().slices

    def listing(self, *, again: bool = False) -> SourceListing:
        """Return the files of the sources as they were listed last; `again`: list them now."""
        if self._listed is None or again:
            self._listed = list_sources(self.sources)
        return self._listed

    @property
    def identify(self) -> Callable[[str], str] | None:
        """Return the function that identifies a document's language; None: it is not looked for."""
        return self._identify

    def identified_by(self, identify: Callable[[str], str], language: str) -> CorpusConfig:
        """Return the config with this function and the language of most documents."""
        config = self.model_copy(update={"language": language})
        config._identify = identify
        return config

    def __getstate__(self) -> dict[Any, Any]:
        """Leave the list of files out of the pickle, which is sent to every worker."""
        private = {"_listed": None, "_identify": self._identify}
        return {**super().__getstate__(), "__pydantic_private__": private}

    def __eq__(self, other: object) -> bool:
        """Compare the fields only, not the list of files."""
        return isinstance(other, CorpusConfig) and self.__dict__ == other.__dict__

    __hash__ = _Options.__hash__


# Cost estimate. The stage reads every source once, writes the text three times (intermediate files,
# runs, shards) and keeps signatures in memory.

START = 4.0  # seconds to start workers and to hash
SPEED = 5e5  # bytes of clean text per second and worker; prose is much faster, docstrings slower
# Approximate bytes of clean text per byte of file, from Wikipedia dumps (20 GB of bz2: 14 GB of
# text), crawled pages and books.
CLEAN = {
    ".bz2": 0.7, ".gz": 1.5, ".xz": 2.0, ".zst": 2.0, ".zip": 1.5, ".parquet": 1.4, ".epub": 1.5,
    ".xml": 0.4, "": 0.9,
}  # fmt: skip
DOCUMENT, REFERENCE = 3000, 400  # bytes of text, and of the signature, per document


def ahead(plan: PlannedBuild[CorpusConfig]) -> CostEstimate:
    """Estimate the cost from the file sizes, or from the text bytes of an earlier build.

    An earlier build counts only if it has the same source kinds and paths.
    """
    config, before, execution = plan.config, plan.before, plan.execution
    text, rough = clean_bytes(config), True
    if before and _sources(before["config"]) == _sources(config.model_dump(mode="json")):
        text, rough = float(before["bytes"]), False
    width = min(execution.workers, plan.machine.cpus)
    documents = int(text / DOCUMENT)
    compared = min(documents, execution.dedup_in_memory_documents)
    return CostEstimate(
        work=text,
        speed=SPEED,
        startup_seconds=START,
        parallelism=width,
        disk_bytes=int(3.2 * text),
        memory_bytes=int((width + 1) * PROCESS_BYTES + compared * REFERENCE),
        expected_metadata={"bytes": text, "documents": text / DOCUMENT, "rough": rough},
        note=_compared(execution, documents),
    )


def _compared(execution: BeamOptions, documents: int) -> str:
    """Return a note on where duplicates are searched, or "" for a small local build.

    The number of documents is a guess from file sizes.
    """
    most = execution.dedup_in_memory_documents
    if execution.runner.lower() == "local" and documents <= most:
        return ""
    where = "in partitions" if documents > most else "by one process"
    return (
        f"about {documents:,} documents are compared {where} "
        f"(dedup_in_memory_documents is {most:,})"
    )


def clean_bytes(config: CorpusConfig) -> float:
    """Estimate the bytes of clean text from the sizes and names of the files."""
    clean = 0.0
    for piece in (listed.slice for listed in config.listed()):
        shares = [*READERS.find(piece.kind).clean_shares, *CLEAN.items()]
        share = next(share for ending, share in shares if piece.path.lower().endswith(ending))
        span = piece.span
        clean += share * (piece.size if span is None else span[1] - span[0])
    return clean


def _sources(config: Mapping[str, Any]) -> list[Any]:
    return sorted((source["kind"], source["path"]) for source in config["sources"])


def afterwards(facts: Metadata) -> MeasuredThroughput | None:
    """Measure the throughput: bytes of clean text per second and worker."""
    return MeasuredThroughput.by_workers(facts, float(facts["bytes"]), START)


COSTS = CostModel(estimate=ahead, measure=afterwards)
