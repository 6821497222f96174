"""Options shared by readers and cleaning steps, and those of mixing and deduplication.

A reader or step declares its own options in its module, in a subclass of `CorpusOptions`.
`CorpusConfig` derives from all these classes: every option is a flat key of the section `corpus`,
and every reader and step accepts the config.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import get_annotations
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from cloze.core.config import StageConfig
from cloze.core.errors import did_you_mean
from cloze.core.humanize import parse_count

AUTO = "auto"

# Larger documents are not genuine text but decompression bombs, logs or concatenations.
MAXIMUM_DOCUMENT_BYTES = 64 << 20

# If more of a file is unreadable, its format is not what the source claims.
MAXIMUM_UNREADABLE_SHARE = 0.5


class CorpusOptions(StageConfig):
    """Base class of the options of every reader and cleaning step.

    Pydantic builds the validators of a class on first use: only `CorpusConfig` is ever validated.
    """

    model_config = ConfigDict(defer_build=True)

    web: ClassVar[Mapping[str, Any]] = {}
    """Values that `preset: web` gives to options of the class."""

    main: ClassVar[tuple[str, str]] = ("", "")
    """Option of the class without which its others mean nothing, and what to set it to."""

    preset: Literal["prose", "web"] = "prose"
    """Rule set: prose for books and encyclopedias, web for crawled pages (C4 and MassiveText
    rules)."""

    web_sources: tuple[str, ...] = ()
    """Kind of source to which --preset web applies. Repeatable. Default: all."""

    language: str = Field(default="", pattern="^([a-z]{2,3}|auto|)$")
    """Language of the text (ISO 639), or auto to identify it per document. Default: identified, if
    the source names none."""

    keep_languages: tuple[str, ...] = ()
    """With --language auto: keep only this language. Repeatable. Default: all."""

    on_error: Literal["stop", "quarantine"] = "stop"
    """Truncated or damaged files: stop, or quarantine the rest of the file."""

    maximum_document_bytes: int = Field(default=MAXIMUM_DOCUMENT_BYTES, ge=1 << 10)
    """Drop raw documents larger than this, before they are parsed."""

    keep_dropped: bool = False
    """Write dropped documents and the reasons to OUT/dropped."""

    @field_validator("keep_languages")
    @classmethod
    def _codes(cls, languages: tuple[str, ...]) -> tuple[str, ...]:
        for code in languages:
            if not (2 <= len(code) <= 3 and code.isascii() and code.isalpha() and code.islower()):
                raise ValueError(f"{code!r} is not an ISO 639 code; write it as 'en' or 'deu'")
        return languages

    @model_validator(mode="before")
    @classmethod
    def _fill_preset(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("preset") != "web":
            return data
        return {
            key: value for base in cls.__mro__ for key, value in vars(base).get("web", {}).items()
        } | data

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.keep_languages and self.language != AUTO:
            raise ValueError(
                f"keep_languages ({list(self.keep_languages)}) needs language: auto (found "
                f"{self.fallback_language!r}). Set language: auto, or remove keep_languages"
            )
        return self

    @model_validator(mode="after")
    def _main_is_set(self) -> Self:
        fields = type(self).model_fields
        for base in type(self).__mro__:
            main, value = vars(base).get("main", ("", ""))
            others = [name for name in get_annotations(base) if name in fields and name != main]
            changed = [name for name in others if getattr(self, name) != fields[name].get_default()]
            if main and changed and not getattr(self, main):
                verb = "needs" if len(others) == 1 else "need"
                raise ValueError(f"{' and '.join(others)} {verb} {main}. Set it to {value}")
        return self

    @property
    def fallback_language(self) -> str:
        """Return the language assumed for documents that name none."""
        return self.language if self.language not in ("", AUTO) else "en"

    @property
    def expected_languages(self) -> tuple[str, ...]:
        """Return the languages that the sources may be in; empty: any."""
        return self.keep_languages if self.language == AUTO else (self.fallback_language,)


class MixtureOptions(CorpusOptions):
    """Options of the mixture: how much of each source or language to keep."""

    max_words: int | None = Field(default=None, ge=1)
    """Keep at most this many words, such as 10M. Default: all."""

    mixture: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """Share of the words by kind of source or language: wikipedia=3. Repeatable. Default: the
    sizes.
    """

    mixture_by: Literal["source", "language"] = "source"
    """Unit of the mixture: source or language."""

    mixture_temperature: float = Field(default=1.0, gt=0)
    """Without weights, sample by size ** (1 / T); T > 1 favours small sources."""

    mixture_epochs: float = Field(default=1.0, ge=1)
    """Maximum number of times a source or language is repeated."""

    @field_validator("max_words", mode="before")
    @classmethod
    def _a_number(cls, value: Any) -> Any:
        number = parse_count(value) if isinstance(value, str) else value
        if number is None and value is not None:
            raise ValueError("not a number of words; write it as 10M, 2.5M, 800k or 10000000")
        return number

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        if self.mixture and self.mixture_temperature != 1:
            raise ValueError(
                "mixture (explicit weights) and mixture_temperature (weights by size) are mutually "
                "exclusive. Set one of them"
            )
        if self.mixture_by == "language" and self.language != AUTO:
            raise ValueError("mixture_by: language needs language: auto")
        if self.mixture_epochs > 1 and not self.mixes:
            raise ValueError(
                "mixture_epochs above 1 needs a mixture. Set mixture, mixture_temperature or "
                "max_words"
            )
        return self

    @property
    def mixes(self) -> bool:
        """Return True unless all remaining documents are kept once."""
        return self.max_words is not None or bool(self.mixture) or self.mixture_temperature != 1

    def check_kinds(self, kinds: Sequence[str]) -> None:
        """Check that the mixture has a weight for every kind of source, and for no other.

        Raises:
            ValueError: a kind without a weight, or a weight without a source.
        """
        if not self.mixture or self.mixture_by != "source":
            return
        for name in self.mixture:
            if name not in kinds:
                raise ValueError(
                    f"mixture has a weight for {name!r}, but no source is of that kind; "
                    f"{did_you_mean(name, kinds)}"
                )
        missing = [kind for kind in kinds if kind not in self.mixture]
        if missing:
            raise ValueError(
                f"mixture has no weight for {missing[0]!r}. Set a weight for every kind of "
                f"source, or remove mixture"
            )


@dataclass(frozen=True, slots=True)
class MinHash:
    """MinHash parameters; the defaults are those of datatrove's `MinhashConfig`."""

    bands: int = 14
    """Bands of a signature; near duplicates share all rows of at least one band."""

    rows: int = 8
    """Rows (minimum hashes) per band."""

    ngram: int = 5
    """Words per hashed n-gram."""

    @property
    def minima(self) -> int:
        """Return the number of hashes per signature."""
        return self.bands * self.rows

    @property
    def threshold(self) -> float:
        """Return the Jaccard similarity at which half of the pairs share a band."""
        return float((1 - 0.5 ** (1 / self.bands)) ** (1 / self.rows))


DEFAULT = MinHash()


class DedupOptions(CorpusOptions):
    """Options of deduplication."""

    dedup: Literal["minhash", "exact", "none"] = "minhash"
    """Drop near duplicates (minhash), exact duplicates, or none."""

    dedup_bands: int = Field(default=DEFAULT.bands, ge=1, le=100)
    """Bands of the MinHash signature."""

    dedup_rows: int = Field(default=DEFAULT.rows, ge=1, le=100)
    """Rows per band."""

    dedup_ngram: int = Field(default=DEFAULT.ngram, ge=1, le=100)
    """Words per n-gram."""

    dedup_similarity: float = Field(default=0.6, ge=0, le=1)
    """Jaccard similarity of a near duplicate to the document that stays; 0: any shared band
    counts."""

    def minhash(self) -> MinHash | None:
        """Return the MinHash parameters; None unless `dedup` is `minhash`."""
        if self.dedup != "minhash":
            return None
        return MinHash(self.dedup_bands, self.dedup_rows, self.dedup_ngram)
