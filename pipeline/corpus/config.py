"""Corpus stage: its config, composed of the options of all readers, all cleaning steps and the search for duplicates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field, PrivateAttr, model_validator
from typing_extensions import Self

from pipeline.core import fingerprints
from pipeline.core.errors import UsageError, did_you_mean
from pipeline.core.options import joined
from pipeline.corpus.dedup.options import DedupOptions
from pipeline.corpus.mix_options import MixOptions
from pipeline.corpus.readers import READERS, find_reader
from pipeline.corpus.sources import ListedSlice, Source, list_sources, source_fingerprints
from pipeline.corpus.steps.chain import TextConfig

ABOUT = ("licence", "name", "url", "date")

if TYPE_CHECKING:

    class _Options(DedupOptions, MixOptions, TextConfig): ...
else:
    _Options = joined(
        "_Options", [*(find_reader(kind).options for kind in READERS), DedupOptions, MixOptions, TextConfig], __name__
    )


class CorpusConfig(_Options):
    """What is read, and what becomes of it."""

    sources: tuple[Source, ...] = Field(min_length=1, examples=["[{kind: wikipedia, path: DUMP.xml.bz2}]"])
    """What is read, in any order."""

    heldout_fraction: float = Field(default=0.02, ge=0, lt=1)
    """Share of the documents held out, chosen by their keys alone."""

    shard_bytes: int = Field(default=4 << 20, ge=1 << 10, le=1 << 30)
    """UTF-8 bytes of text in a shard, about; a shard is the unit of work of later stages."""

    max_rejected_share: float = Field(default=1.0, ge=0, le=1)
    """Stop where a larger share cannot be read: quarantined files, pages and lines, of these and all documents read (0 to 1)."""

    keep_rejected: bool = False
    """Whether what is dropped is written to `rejected/`, with the reason and the step."""

    _listed: tuple[ListedSlice, ...] | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _weighs_what_is_read(self) -> Self:
        self.check_kinds(sorted({source.kind for source in self.sources}))
        return self

    @staticmethod
    def with_columns(sources: Iterable[Mapping[str, Any]], columns: Mapping[str, str]) -> list[dict[str, Any]]:
        """Plain sources, those that have columns told what these are called.

        Raises:
            UsageError: none of them has columns.
        """
        sources = list(sources)
        structured = [kind for kind in READERS if find_reader(kind).has_columns]
        if not any(source["kind"] in structured for source in sources):
            raise UsageError(f"--field names columns of {', '.join(structured)} sources, and none is given; leave it out")
        return [{**source, "fields": columns} if source["kind"] in structured else dict(source) for source in sources]

    @staticmethod
    def with_origins(sources: Iterable[Mapping[str, Any]], about: Iterable[tuple[str, str, str]]) -> list[dict[str, Any]]:
        """Plain sources, with what is said of where they are from.

        Args:
            about: (kind, `licence`, `name`, `url` or `date`, what it is), for all sources of the kind.

        Raises:
            UsageError: no source is of the kind, or nothing of that name can be said.
        """
        found = [dict(source) for source in sources]
        for kind, name, value in about:
            if name not in ABOUT:
                raise UsageError(
                    f"--about {kind}.{name} names nothing that can be said of a source; {did_you_mean(name, ABOUT)}"
                )
            own = [source for source in found if source["kind"] == kind]
            if not own:
                kinds = sorted({source["kind"] for source in found})
                raise UsageError(f"--about {kind}.{name} is of no source that is given; {did_you_mean(kind, kinds)}")
            for source in own:
                source[name] = value
        return found

    def external_fingerprints(self) -> dict[str, str]:
        """`source/KIND` and `decontaminate`: one hash over names and bytes of all files, whatever their order and place; `filter`; `blocked_words`.

        The sources are listed and hashed anew; `listed` keeps what was found.
        """
        self._listed = list_sources(self.sources)
        found = source_fingerprints(self._listed)
        if self.decontaminate:
            found["decontaminate"] = fingerprints.combine({(name, sha256) for name, _, sha256 in self.task_files()})
        for name in ("filter", "blocked_words"):
            if (path := getattr(self, name)) is not None:
                found[name] = fingerprints.input_fingerprint(path)
        return found

    def listed(self) -> tuple[ListedSlice, ...]:
        """The slices of the sources, as they were when the fingerprint was made."""
        if self._listed is None:
            self._listed = list_sources(self.sources)
        return self._listed

    def __getstate__(self) -> dict[Any, Any]:
        """Workers are sent the options, and not the list of all files."""
        return {**super().__getstate__(), "__pydantic_private__": {"_listed": None}}

    def __eq__(self, other: object) -> bool:
        """Two configs are the same if their values are, whatever was listed."""
        return isinstance(other, CorpusConfig) and self.__dict__ == other.__dict__

    __hash__ = _Options.__hash__
