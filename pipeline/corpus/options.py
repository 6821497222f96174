"""Corpus stage: the options that readers and cleaning steps both look at.

A reader or step declares options of its own in its file, in a class derived from `CorpusOptions`. `CorpusConfig` is derived from all
of these classes, so that every option is a flat key of the section `corpus`, and a config can be handed to any reader or step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator
from typing_extensions import Self

from pipeline.core.config import StageConfig

AUTO = "auto"

# No text that anybody wrote is longer; what claims to be is a bomb, a log or a concatenation, and is dropped unread.
MAXIMUM_DOCUMENT_BYTES = 64 << 20


class CorpusOptions(StageConfig):
    """Base of the options of every reader and every cleaning step.

    Values are parsed as `CorpusConfig` alone, so pydantic makes the validators of a class when they are first asked for.
    """

    model_config = ConfigDict(defer_build=True)

    web: ClassVar[Mapping[str, Any]] = {}
    """What `profile: web` sets of the options that a class declares."""

    profile: Literal["prose", "web"] = "prose"
    """`prose` keeps the defaults, for encyclopedias, books and documentation; `web` turns on what the recipe of C4 and MassiveText
    asks of crawled pages (each step says what), unless the config says otherwise."""

    web_sources: tuple[str, ...] = ()
    """Kinds of sources (`warc`, `jsonl`, …) to whose documents alone the steps of `profile: web` apply; empty: to all."""

    language: str = Field(default="en", pattern="^([a-z]{2,3}|auto)$")
    """Language of the text (ISO 639), for the sentence splitter and the rules that know languages; `auto`: each document's own,
    as identified."""

    languages: tuple[str, ...] = ()
    """Where `language` is `auto`, which languages are kept; documents in others are dropped as `other_language`. Empty: all."""

    on_error: Literal["stop", "quarantine"] = "stop"
    """What a truncated or damaged file does: stop the stage, or be quarantined with what follows the damage."""

    maximum_document_bytes: int = Field(default=MAXIMUM_DOCUMENT_BYTES, ge=1 << 10)
    """Raw documents of more bytes are dropped as `too_long` before they are held."""

    @field_validator("languages")
    @classmethod
    def _codes(cls, languages: tuple[str, ...]) -> tuple[str, ...]:
        for code in languages:
            if not (2 <= len(code) <= 3 and code.isascii() and code.isalpha() and code.islower()):
                raise ValueError(f"{code!r} is no ISO 639 code; write it like 'en' or 'deu'")
        return languages

    @model_validator(mode="before")
    @classmethod
    def _fill_profile(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("profile") != "web":
            return data
        return {key: value for base in cls.__mro__ for key, value in vars(base).get("web", {}).items()} | data

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.languages and self.language != AUTO:
            raise ValueError(
                f"languages {list(self.languages)} need language: auto, not {self.language!r}; set it, or leave languages out"
            )
        return self

    @property
    def fallback_language(self) -> str:
        """The language of documents that name none."""
        return "en" if self.language == AUTO else self.language

    @property
    def expected_languages(self) -> tuple[str, ...]:
        """The languages that the sources may be in; empty: any."""
        return self.languages if self.language == AUTO else (self.language,)
