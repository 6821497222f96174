"""Locating a task's files, reading JSON and corpora, and cross-validation folds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from cloze.core import storage
from cloze.core.errors import DataError
from cloze.model.tasks.options import TaskOptions

HALVES = (
    "\\ud"  # escaped surrogate: half of a character beyond the first 65,536; UTF-8 contains none
)


def load_json(text: str) -> Any:
    r"""Parse JSON written by users.

    Raises:
        json.JSONDecodeError: the text is no JSON, is nested too deeply, has a number of thousands
            of
            digits, or a lone surrogate (`\ud83d`), which no tokenizer accepts.
    """
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise json.JSONDecodeError("nested too deeply", text, 0) from None
    except ValueError as error:
        raise json.JSONDecodeError(str(error).partition(";")[0], text, 0) from None
    lowered = text.lower() if "\\u" in text else ""
    if HALVES in lowered:
        try:
            json.dumps(found, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(error.object[error.start]):04x}"
            raise json.JSONDecodeError(
                f"{half} is half a character", text, max(0, lowered.find(half))
            ) from None
    return found


# Location of a split: a named file, or one in a directory.


def directories(path: str, options: TaskOptions) -> list[str]:
    """Return the directories of a task's files: its folder below `path`, then `path`."""
    return [storage.join(path, options.folder), path] if options.folder else [path]


def split_file(
    path: str, split: str, options: TaskOptions, suffixes: Sequence[str], told: str
) -> str:
    """Return the file of a split.

    Args:
        path: the file itself, the task directory, or its parent.
        suffixes: suffixes of default names, such as `.tsv`.
        told: description of the expected files, for the message.

    Raises:
        DataError: the file does not exist.
    """
    if storage.exists(path) and not storage.is_dir(path):
        return path
    names = options.files.get(split) or tuple(f"{split}{suffix}" for suffix in suffixes)
    for directory in directories(path, options):
        for name in names:
            if storage.exists(storage.join(directory, name)):
                return storage.join(directory, name)
    raise DataError(f"{storage.join(path, names[0])} does not exist; the task reads {told}")


# Cross-validation of a file without splits.


def fold_indices(texts: Sequence[str], split: str, folds: int, fold: int) -> list[int]:
    """Return the numbers of a split's examples: dev is part `fold`, train all other parts.

    Distinct texts are ordered by a hash and cut into `folds` equal parts (to within one text).
    Examples with equal texts stay together, independent of file order and machine.

    Args:
        texts: text of each example that must not occur in two parts.
        split: train or dev.
    """
    from cloze.core.random_keys import document_key  # imports numpy, which configs do without

    ranked = sorted(set(texts), key=lambda text: (document_key(text), text))
    part = {text: rank * folds // len(ranked) for rank, text in enumerate(ranked)}
    return [number for number, text in enumerate(texts) if (part[text] == fold) == (split == "dev")]


# Documents of a corpus artifact.


def documents(
    path: str, columns: Sequence[str], source: str | None = None
) -> Iterator[tuple[Any, ...]]:
    """Iterate over the values of `columns` of every document, one record batch in memory at a time.

    Args:
        source: only documents of this source; None: all.

    Raises:
        DataError: `path` has no corpus, or a shard is no Arrow file.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    names = [
        name
        for name in storage.list_files(path)
        if name.startswith("corpus-") and name.endswith(".arrow")
    ]
    if not names:
        raise DataError(
            f"{path} holds no corpus (no file corpus-*.arrow); name the artifact that `cloze "
            f"corpus` made"
        )
    for name in sorted(names):
        with storage.open_input(storage.join(path, name)) as handle:
            try:
                reader = pa.ipc.open_file(handle)
            except pa.ArrowInvalid as error:
                raise DataError(
                    f"{storage.join(path, name)} is no Arrow file ({error}); run `cloze corpus` "
                    f"again"
                ) from error
            for i in range(reader.num_record_batches):
                batch = reader.get_batch(i)
                chosen = (
                    batch
                    if source is None
                    else batch.filter(pc.equal(batch.column("source"), source))
                )
                yield from zip(
                    *(chosen.column(column).to_pylist() for column in columns), strict=True
                )
