"""Language identification, and a filter by language.

py3langid is a naive Bayes classifier over byte n-grams for 139 languages; its model (4.5 MB) is
part of the package, so nothing is downloaded. It gets a sample of the text, which bounds the cost.
"""

from __future__ import annotations

import functools
import hashlib
import lzma
import re
import zipfile
from array import array
from collections.abc import Mapping, Set
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from pydantic import Field

from cloze.core import storage
from cloze.core.errors import ClozeError
from cloze.core.places import cache_directory
from cloze.pipeline.corpus.document import PLACEHOLDER_PATTERN, Document
from cloze.pipeline.corpus.options import AUTO, CorpusOptions
from cloze.pipeline.corpus.steps.base import (
    CleaningResult,
    CleaningStep,
    StepFunction,
    restrict_to_sources,
)

SAMPLE = 1000  # characters examined; three times as many decide no better
FIRST_SAMPLE = 400  # characters examined first; enough for four documents in five
CERTAIN = 0.99
_WINDOWS = 3
UNKNOWN = "und"  # ISO 639: undetermined
_LETTER = re.compile(r"[^\W\d_]")
_NOISE = re.compile(r"https?://\S+|www\.\S+|\S+@\S+|[\d_]+|" + PLACEHOLDER_PATTERN.pattern)
# A text of one is often as probable in another of them: the doubt is not about the text.
_GROUPS = ("id ms jv", "no nb nn da", "hr bs sr", "cs sk", "es gl an", "pt gl", "ca oc", "xh zu")
_RELATED = {name: group.split() for group in _GROUPS for name in group.split()}
_NAMES = {"nb": "no", "zxx": UNKNOWN}


class LanguageOptions(CorpusOptions):
    """Options of the language filter."""

    web: ClassVar[Mapping[str, Any]] = {"language_probability": 0.99}

    language_probability: float = Field(default=0.0, ge=0, le=1)
    """Above 0: identify each document's language; drop other languages, and results below this
    probability. With --preset web: 0.99."""


# of a cache without room, or with another file than was written
DAMAGED = (ClozeError, OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile)


@functools.cache
def _identifier() -> Any:
    from py3langid import langid, modelio

    packed = langid.MODEL_DIR / langid.MODEL_FILE
    try:
        model = _unpacked_model(packed.read_bytes())
    except DAMAGED:
        model = modelio.load_model(packed)
    ptc, pc, classes, moves, rows, output = model
    return langid.LanguageIdentifier(ptc, pc, classes, moves, output, norm_probs=True, tk_row=rows)


def _unpacked_model(packed: bytes) -> tuple[Any, ...]:
    """Return the model, kept unpacked in the cache: LZMA would take half a second of each run."""
    path = str(cache_directory() / f"langid-{hashlib.sha256(packed).hexdigest()[:16]}.npz")
    if not storage.exists(path):
        storage.write_bytes(path, lzma.decompress(packed))
    import numpy as np  # the command line reads this module's options

    with np.load(path) as arrays:
        tables = []
        for name in ("nextmove", "nextmove_row"):
            values = arrays[name]
            tables.append(array(values.dtype.char))
            tables[-1].frombytes(values.data.cast("B"))  # `tobytes` would be another 39 MB
        classes, output = arrays["classes"].tolist(), arrays["out_feat"].tolist()
        return arrays["ptc"], arrays["pc"], classes, *tables, output


def sample(text: str, characters: int = SAMPLE) -> str:
    """Return the text, or a sample of its beginning, middle and end if it is longer."""
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
    """Return the most probable language (ISO 639; `und` if undetermined) and its probability.

    The probability of closely related languages, such as Indonesian and Malay, is that of all.
    Only a sample of SAMPLE characters is examined. The probability has three decimals; a text
    without letters is `und` with probability 1.
    """
    for characters in (FIRST_SAMPLE, SAMPLE):
        sampled = _NOISE.sub(" ", sample(text, characters))
        if _LETTER.search(sampled) is None:
            name, probability = UNKNOWN, 1.0
        else:
            name, probability = _identifier().classify(sampled)
            if probability < CERTAIN and (related := _RELATED.get(name)):
                ranks = _identifier().rank(sampled)
                probability = sum(share for language, share in ranks if language in related)
        # The last bits of the library's single-precision sums depend on the processor.
        probability = round(float(probability), 3)
        if (probability >= CERTAIN and name != UNKNOWN) or len(text) <= characters:
            break
    return _NAMES.get(name, name), probability


def keep_language(
    document: Document, languages: Set[str], minimum: float, trusted: bool = False
) -> CleaningResult:
    """Set the document's language; drop documents in other or uncertain languages.

    Args:
        languages: ISO 639 codes; others are dropped as `other_language`. Empty: any language.
        minimum: minimum probability; documents below are dropped as `language_uncertain`.
        trusted: believe the source, if it names a language.
    """
    stated = document.language if trusted else ""
    name, probability = (stated, 1.0) if stated else identify(document.text)
    if languages and name not in languages:
        return CleaningResult(None, "other_language")
    if probability < minimum or name == UNKNOWN:
        return CleaningResult(None, "language_uncertain")
    return CleaningResult(replace(document, language=name))


def _build(options: LanguageOptions) -> StepFunction | None:
    minimum = options.language_probability
    keep = partial(keep_language, languages=frozenset(options.expected_languages))
    if options.language != AUTO and not minimum:
        return None
    # Sentence splitting needs the language of every document. A dump knows it better than a sample
    # of an article does, and one article taken for Wu would be a language of its own in a mixture.
    others = (
        partial(keep, minimum=0.0, trusted=True) if options.language == AUTO else CleaningResult
    )
    return restrict_to_sources(options.web_sources, partial(keep, minimum=minimum), others)


STEP = CleaningStep(
    options=LanguageOptions,
    build=_build,
    settings={"other_language": "language", "language_uncertain": "language_probability"},
)
