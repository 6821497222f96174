"""What a worker's exception is called in a sentence, and how the sentence finds its way back through any engine.

Engines hand an exception back as text, wrapped in other text: Beam's traceback, or Java's. So the sentence travels between marks.
"""

from __future__ import annotations

import errno
import json
import re

_MARK = re.compile(r'<cloze:fault ("(?:[^"\\\n]|\\.)*")>')
_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some of your quota",
    errno.EROFS: "choose a place that can be written to",
    errno.EACCES: "choose a place that you may write to",
    errno.EPERM: "choose a place that you may write to",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


def sentence(unit: str, error: BaseException) -> str:
    """What went wrong with `unit`, and what to do about it."""
    if isinstance(error, MemoryError):  # Arrow's and numpy's are of this kind
        detail = f" ({error})" if str(error) else ""
        return f"{unit} did not fit in memory{detail}; use fewer --workers, smaller shards, or a machine with more memory"
    if isinstance(error, OSError):
        return os_sentence(error, f"input or output of {unit}")
    return f"{unit} failed: {type(error).__name__}: {' '.join(str(error).split())}"


def os_sentence(error: OSError, otherwise: str) -> str:
    """Names the file, what the system said of it, and the remedy. `otherwise`: what to name where the error names no file."""
    remedy = _REMEDIES.get(error.errno or 0, "mend it")
    return f"{error.filename or otherwise}: {error.strerror or error}; {remedy}"


def mark(text: str) -> str:
    return f"<cloze:fault {json.dumps(text)}>"


def marked(text: str) -> str | None:
    """The sentence between the marks somewhere in `text`, if there is one."""
    found = _MARK.search(text)
    return None if found is None else str(json.loads(found[1]))
