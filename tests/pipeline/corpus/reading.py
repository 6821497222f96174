"""How tests read sources: the options of a reader, unchecked, so that a limit can be as small as a
test wants it.
"""

from __future__ import annotations

from typing import Any

from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.readers.base import FileReader


def options_of(reader: FileReader, *, stop: bool = True, **values: Any) -> CorpusOptions:
    """Args: stop: whether a damaged file ends reading; else it is quarantined."""
    return reader.options().model_copy(
        update={"on_error": "stop" if stop else "quarantine", **values}
    )
