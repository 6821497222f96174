"""Corpus stage: the options of everything that happens to a document between its reader and the search for copies."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from pipeline.core.config import StageConfig

# What `profile: web` sets where the config says nothing else: the recipe of C4 and MassiveText for crawled pages.
WEB: dict[str, Any] = {
    "boilerplate": True,
    "c4": True,
    "duplicate_lines": True,
    "duplicate_paragraphs": True,
    "gopher_quality": True,
    "gopher_repetition": True,
    "language_probability": 0.99,
}
AUTO = "auto"


class TextConfig(StageConfig):
    """How text is cleaned, filtered and split into sentences. Every step is on or off by itself; a zero turns a filter off.

    The defaults are for sources that hold prose: encyclopedias, books, documentation. `profile: web` is for crawled pages.

    Attributes:
        profile: `web` sets `boilerplate`, `c4`, `duplicate_lines`, `duplicate_paragraphs`, `gopher_quality`, `gopher_repetition`, and a
            `language_probability` of .99, each unless it is given itself.
        web_sources: readers (`warc`, `jsonl`, …) to whose documents those seven apply; empty: to all.
        language: of the text (ISO 639), for the sentence splitter and the rules that know languages; `auto`: each document's
            own, as identified.
        languages: which languages are kept where `language` is `auto`; empty: all. Others are dropped as `other_language`.
        language_probability: above 0, each document's language is identified, and the document dropped as `other_language`, or as
            `language_uncertain` where it is less probable. C4 takes .99. 0: no document is dropped for its language.
        repair_unicode: text that was decoded with the wrong character set is put right.
        normalize_unicode: NFC, NFKC (folds full-width letters, ligatures, superscripts) or none.
        remove_controls: control characters and invisible ones are taken out.
        collapse_whitespace: runs of blanks become one space. Off: tabs and runs inside a line stay.
        boilerplate: lines of cookie notices, menus, share buttons, licences are removed (`boilerplate_*`).
        c4: C4's rules for lines and pages (`c4_*`).
        c4_end_marks: C4's rule that a line ends in an end mark, which takes headings, lists and verse.
        duplicate_lines, duplicate_paragraphs: later copies within a document are removed; a paragraph ends as a sentence does.
        gopher_quality: MassiveText's rules on words, symbols, bullets and stop words (`gopher_*`).
        gopher_repetition: MassiveText's rules on repeated lines and n-grams (`gopher_duplicate_*`, `gopher_top_*`).
        minimum_characters, minimum_words: documents with less are dropped as `too_short`.
        maximum_characters: documents with more are dropped as `too_long`.
        minimum_letters: share of letters among non-blank characters, below which a document is `not_prose`.
        mask_personal_data: which of `email`, `phone` and `ip` are replaced (`masked_*`).
        email_token, phone_token, ip_token: what replaces them.
    """

    profile: Literal["prose", "web"] = "prose"
    web_sources: tuple[str, ...] = ()
    language: str = Field(default="en", pattern="^([a-z]{2,3}|auto)$")
    languages: tuple[str, ...] = ()
    language_probability: float = Field(default=0.0, ge=0, le=1)
    repair_unicode: bool = True
    normalize_unicode: Literal["NFC", "NFKC", "none"] = "NFC"
    remove_controls: bool = True
    collapse_whitespace: bool = True
    boilerplate: bool = False
    c4: bool = False
    c4_end_marks: bool = True
    duplicate_lines: bool = False
    duplicate_paragraphs: bool = False
    gopher_quality: bool = False
    gopher_repetition: bool = False
    minimum_characters: int = Field(default=200, ge=0)
    minimum_words: int = Field(default=30, ge=0)
    maximum_characters: int = Field(default=5_000_000, ge=0)
    minimum_letters: float = Field(default=0.7, ge=0, le=1)
    mask_personal_data: tuple[Literal["email", "phone", "ip"], ...] = ()
    email_token: str = "<email>"
    phone_token: str = "<phone>"
    ip_token: str = "<ip>"

    @model_validator(mode="before")
    @classmethod
    def _fill_profile(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("profile") == "web":
            return {**WEB, **data}
        return data

    @field_validator("languages")
    @classmethod
    def _codes(cls, languages: tuple[str, ...]) -> tuple[str, ...]:
        for code in languages:
            if not (2 <= len(code) <= 3 and code.isascii() and code.isalpha() and code.islower()):
                raise ValueError(f"{code!r} is no ISO 639 code; write it like 'en' or 'deu'")
        return languages

    @model_validator(mode="after")
    def _consistent(self) -> TextConfig:
        if self.languages and self.language != AUTO:
            raise ValueError(
                f"languages {list(self.languages)} need language: auto, not {self.language!r}; set it, or leave languages out"
            )
        return self

    @property
    def identifies_language(self) -> bool:
        """Whether the language of every document is identified."""
        return self.language == AUTO or self.language_probability > 0

    @property
    def fallback_language(self) -> str:
        """The language of documents that name none."""
        return "en" if self.language == AUTO else self.language
