"""Corpus stage: which language a document is in.

py3langid decides: a naive Bayes classifier over byte n-grams for 139 languages, whose model (4.5 MB) comes with the
package, so nothing is downloaded. It looks at a sample of the text, which bounds the cost whatever the document's length.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Set
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from pydantic import Field

from pipeline.corpus.document import A_HOLE, Document
from pipeline.corpus.options import AUTO, CorpusOptions
from pipeline.corpus.steps.base import StepFunction, StepKind, StepResult, only_from

SAMPLE = 1000  # characters that are looked at; three times as many decide no better (docs/decisions.md)
FIRST_SAMPLE = 400  # characters that are looked at first, which is enough for four documents in five
CERTAIN = 0.99
_WINDOWS = 3
UNKNOWN = "und"  # ISO 639: undetermined
_LETTER = re.compile(r"[^\W\d_]")
_NOISE = re.compile(r"https?://\S+|www\.\S+|\S+@\S+|[\d_]+|" + A_HOLE.pattern)
_NAMES = {"nb": "no", "zxx": UNKNOWN}


class LanguageOptions(CorpusOptions):
    """Documents in other languages."""

    web: ClassVar[Mapping[str, Any]] = {"language_probability": 0.99}

    language_probability: float = Field(default=0.0, ge=0, le=1)
    """Above 0, each document's language is identified; in another language it is dropped as `other_language`, less probable than this
    as `language_uncertain`. C4 takes 0.99."""


@functools.cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def sample(text: str, characters: int = SAMPLE) -> str:
    """The text, or of a longer one its beginning, middle and end, cut at white space where there is some."""
    if len(text) <= characters:
        return text
    width = characters // _WINDOWS
    pieces = []
    for number in range(_WINDOWS):
        begin = (len(text) - width) * number // (_WINDOWS - 1)
        window = text[begin : begin + width]
        if begin and (space := window.find(" ", 0, 40)) >= 0:
            window = window[space + 1 :]
        pieces.append(window)
    return "\n".join(pieces)


def identify(text: str) -> tuple[str, float]:
    """The likeliest language of a text as an ISO 639 code (`und` for what is no language), and its probability, to three digits.

    Of a text longer than SAMPLE characters three parts are looked at. A text without a letter is `und` with probability 1.
    """
    for characters in (FIRST_SAMPLE, SAMPLE):
        looked = _NOISE.sub(" ", sample(text, characters))
        if _LETTER.search(looked) is None:
            name, probability = UNKNOWN, 1.0
        else:
            name, probability = _identifier().classify(looked)
        # three digits: the library's sums are in single precision, whose last bits depend on the processor
        probability = round(float(probability), 3)
        if (probability >= CERTAIN and name != UNKNOWN) or len(text) <= characters:
            break
    return _NAMES.get(name, name), probability


def keep_language(document: Document, wanted: Set[str], minimum: float) -> StepResult:
    """Write down the document's language, and drop what is in another or in none that is certain.

    Args:
        document: cleaned.
        wanted: ISO 639 codes; documents in others are dropped as `other_language`. Empty: any will do.
        minimum: documents in a language that is less probable are dropped as `language_uncertain`.
    """
    name, probability = identify(document.text)
    if wanted and name not in wanted:
        return StepResult(None, "other_language")
    if probability < minimum or name == UNKNOWN:
        return StepResult(None, "language_uncertain")
    return StepResult(replace(document, language=name))


def _build(options: LanguageOptions) -> StepFunction | None:
    minimum = options.language_probability
    step = partial(keep_language, wanted=frozenset(options.expected_languages), minimum=minimum)
    if options.language == AUTO:
        return step  # the splitter of sentences needs it for documents of every source
    return only_from(options.web_sources, step) if minimum else None


STEP = StepKind(options=LanguageOptions, build=_build)
