"""The errors that users can meet, and the exit code of each.

    ClozeError            1  anything that went wrong and is described in one sentence
    ├── UsageError        2  bad usage or config: the user's command or YAML must change
    │   └── SupersededError  another attempt or launch has the directory: no more writes
    ├── DataError         3  bad input data: a file is missing, truncated or of the wrong kind
    ├── TimeLimitError    1  a stage took longer than it may; it is not retried
    ├── NotFiniteError    1  a figure of an evaluation is NaN or infinite; it is not retried
    │   └── NotFiniteWeightsError  3  of a checkpoint; a DataError, too
    └── StoppedError      4  stopped on request, with a checkpoint saved

A message is one sentence that names the file or field, the value found, and what to do.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import importlib.util
import json
import lzma
import posixpath
import re
import shlex
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from xml.parsers.expat import ExpatError


class ClozeError(Exception):
    """Base of every error that Cloze raises on purpose.

    Attributes:
        step: step of a failed training, from 1; None if the error is not from a training step.
        process_died: a process was killed or hung, so a retry may use fewer processes.
    """

    exit_code = 1
    step: int | None = None
    process_died: bool = False


class UsageError(ClozeError):
    """The command line or the config asks for something that cannot be done."""

    exit_code = 2


class DataError(ClozeError):
    """An input is missing, damaged, or not of the expected kind."""

    exit_code = 3


class TimeLimitError(ClozeError):
    """A stage took longer than its `timeout_minutes`."""


class NotFiniteError(ClozeError):
    """A figure of an evaluation is NaN or infinite, so the evaluation has failed."""


class NotFiniteWeightsError(NotFiniteError, DataError):
    """A weight of a checkpoint is NaN or infinite."""


ECHO_SECONDS = 0.3  # a wrapper (`uv run`, a shell) passes on what the terminal has sent to all


class StoppedError(ClozeError):
    """A training stopped on request, after it saved a checkpoint."""

    exit_code = 4


def is_stop(error: BaseException) -> bool:
    """Return whether the error is a request to end, such as Ctrl-C, and no failure."""
    return isinstance(error, StoppedError) or not isinstance(error, Exception)


class SupersededError(UsageError):
    """Another attempt or launch owns the directory; this one must stop and must not be retried."""


BY_EXIT_CODE: dict[int, type[ClozeError]] = {
    error.exit_code: error for error in (UsageError, DataError, StoppedError)
}
_BY_TYPE: dict[str, type[ClozeError]] = {  # whose exit code may say less
    name: kind
    for name, kind in dict(globals()).items()
    if isinstance(kind, type) and issubclass(kind, ClozeError) and kind is not ClozeError
}


def error_class(
    event: Mapping[str, Any], otherwise: type[ClozeError] = ClozeError
) -> type[ClozeError]:
    """Return the class of another process's error: see `error_event`."""
    by_type = _BY_TYPE.get(event.get("type", ""))
    return by_type or BY_EXIT_CODE.get(event["exit_code"], otherwise)


def shell_command(verb: str, name: str) -> str:
    """Return advice to run a command of Cloze on `name`, as a shell takes it, in backticks."""
    end_of_options = ["--"] if name.startswith("-") else []
    return f"`{shlex.join(['cloze', verb, *end_of_options, name])}`"


def did_you_mean(word: str, choices: Iterable[str], otherwise: str | None = None) -> str:
    """Return the end of an error message: the nearest choice, `otherwise`, or all choices."""
    options = sorted(choices)
    nearest = max(options, key=lambda option: _likeness(word, option), default="")
    if _likeness(word, nearest) >= _NEAR:
        return f"did you mean {nearest!r}?"
    return otherwise or ("choose from " + ", ".join(options) if options else "there is none yet")


_NEAR = 0.6


def _likeness(word: str, other: str) -> float:
    """Return how much two names have in common, 0 to 1, besides directory and ending.

    Names that begin differently have less: a mistyped first letter is rare.
    """
    (directory, word), (other_directory, other) = map(
        posixpath.split, (word.lower(), other.lower())
    )
    stem, ending = posixpath.splitext(word)
    if ending and other.endswith(ending):
        word, other = stem, other.removesuffix(ending)
    if directory != other_directory:
        word, other = f"{directory}/{word}", f"{other_directory}/{other}"
    likeness = difflib.SequenceMatcher(None, word, other).ratio()
    begin_alike = word[:1] == other[:1] or sorted(word) == sorted(other)
    return likeness if begin_alike else likeness - 0.15


# Descriptions of exceptions, and markers that carry a message through any Beam runner.

_MARK = re.compile(r'<cloze:fault ("(?:[^"\\\n]|\\.)*")>')
_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some of your quota",
    errno.EROFS: "mount it writable again, or choose another path",
    errno.EACCES: "choose a path that you may write to",
    errno.EPERM: "choose a path that you may write to",
    errno.ELOOP: "remove the link, which another account may have put there",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


def describe_error(unit: str, error: BaseException) -> str:
    """Return what went wrong with `unit`, and what to do about it."""
    if isinstance(error, MemoryError):  # Arrow's and numpy's memory errors are subclasses
        detail = f" ({error})" if str(error) else ""
        return (
            f"{unit} did not fit in memory{detail}; use fewer --workers, smaller shards, or a "
            f"machine with more memory"
        )
    if isinstance(error, OSError):
        return describe_os_error(error, f"input or output of {unit}")
    return f"{unit} failed: {type(error).__name__}: {' '.join(str(error).split())}"


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's text, or the exception's name if it has no text."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


# Errors whose texts are fixed phrases and positions; those of other libraries quote the input.
_PHRASES = (zlib.error, lzma.LZMAError, EOFError, UnicodeError, json.JSONDecodeError, ExpatError)
_QUOTING = re.compile(r"""[:;'"`<({\[=@]|\S*[.@\\]\S""")
_LONGEST_CAUSE = 120
_LONGEST_SENTENCE = 400


def cause_of(error: BaseException) -> str:
    """Return why a library cannot read its input, without the input that its message may quote."""
    if isinstance(error, SyntaxError):  # lxml's, too
        return f"it is not well-formed in line {error.lineno or 1}"
    text = first_line(error)
    if not isinstance(error, _PHRASES):
        text = _QUOTING.split(text, maxsplit=1)[0]
    return text[:_LONGEST_CAUSE].strip(" .,-") or type(error).__name__


def bounded(sentence: str) -> str:
    """Return a sentence on one line that is cut if it is very long."""
    line = " ".join(sentence.split())
    return line if len(line) <= _LONGEST_SENTENCE else f"{line[:_LONGEST_SENTENCE]}…"


_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Add `path` to a disk error in the block if it names no file, as after a failed write."""
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_ERRORS:
            error.filename = error.filename or path
        raise


def describe_os_error(error: OSError, otherwise: str) -> str:
    """Return the error's file, or `otherwise`, with the system's message and the remedy."""
    return f"{error.filename or otherwise}: {error.strerror or error}; {remedy(error)}"


def remedy(error: OSError) -> str:
    return _REMEDIES.get(error.errno or 0, "check the path, its permissions and the disk")


# extra of the distribution -> modules that no other extra needs
_EXTRAS = {
    "data": "apache_beam backports brotli chardet ftfy grpc lxml markdown_it phonenumbers py3langid"
    " resiliparse sentencepiece sentencex trafilatura",
    "train": "deepspeed safetensors seqeval torch",
    "flows": "coolname fastapi mlflow pandas prefect prometheus_client sqlalchemy starlette"
    " uvicorn",
    "onnx": "onnx onnxruntime onnxscript transformers",
    "texts": "rouge_score sacrebleu",
    "vectors": "gensim",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "s3": "s3fs",
    "gcs": "gcsfs",
    "hub": "huggingface_hub",
    "data,train": "scipy sklearn tokenizers",
    "train,flows": "matplotlib",
}


def missing_extra(error: BaseException) -> str:
    """Return the extra whose package an import has not found; "" if the error is another one."""
    module = str(error.name).partition(".")[0] if isinstance(error, ImportError) else ""
    is_here = getattr(sys.modules.get(module), "__file__", "")  # in another version
    return "" if is_here else _extra_of(module)


def _extra_of(module: str) -> str:
    return next((extra for extra, names in _EXTRAS.items() if module in names.split()), "")


def describe_missing_package(error: ImportError) -> str:
    """Return which package is missing, and which extra of the distribution installs it."""
    module = str(error.name).partition(".")[0]
    if not (extra := _extra_of(module)):
        return f"{error}; install the package that provides it"
    return f"{module} is not installed here; run `pip install 'cloze-pretraining-base[{extra}]'`"


def require_packages(*modules: str) -> None:
    """Check that modules can be imported, without importing them.

    Raises:
        ModuleNotFoundError: one cannot.
    """
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)


def error_event(error: BaseException) -> dict[str, Any]:
    """Return a failed worker's last event: message, exit code, whether the error is unexpected."""
    if isinstance(error, ClozeError):
        return {"error": str(error), "exit_code": error.exit_code, "type": type(error).__name__}
    if isinstance(error, OSError):
        message = describe_os_error(error, "input or output") + " and run again"
        return {"error": message, "exit_code": 1}
    if isinstance(error, ModuleNotFoundError):
        return {"error": describe_missing_package(error), "exit_code": 2}
    return {"error": f"{type(error).__name__}: {error}", "exit_code": 1, "unexpected": True}


def wrap_message(text: str) -> str:
    return f"<cloze:fault {json.dumps(text)}>"


def extract_message(text: str) -> str | None:
    """Return the message between the markers somewhere in `text`; None if there is none."""
    match = _MARK.search(text)
    return None if match is None else str(json.loads(match[1]))
