"""Splits in the layouts of the Hugging Face Hub and of the library `datasets`. No torch.

    validation-00000-of-00002.parquet     a repository; also below data/
    validation/0000.parquet               the Hub's Parquet branch; also below data/
    validation/data-00000-of-00001.arrow  save_to_disk
    NAME-validation.arrow                 the library's cache
    validation.csv                        files for it

The split `dev` is called `validation` there.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from cloze.core import storage
from cloze.core.errors import DataError

NAMES = {"dev": ("dev", "validation", "valid", "val")}
_NUMBERED = r"(?:-\d+-of-(?P<of>\d+)(?:-[0-9a-f]+)?)?"
_TABLE = r"\.(?:tsv|csv|jsonl|json|ndjson|parquet|arrow|feather)"
# `datasets` writes its state beside the rows.
_IN_FOLDER = rf"(?!state\.json|dataset_info\.json)(?:[^/.][^/]*?)??{_NUMBERED}{_TABLE}"


def _layouts(split: str) -> Iterator[re.Pattern[str]]:
    """Iterate over the patterns of a split's files below a directory, the first one counts."""
    for name in map(re.escape, NAMES.get(split, (split,))):
        yield re.compile(rf"(?:data/)?{name}{_NUMBERED}{_TABLE}")
        yield re.compile(rf"(?:data/)?{name}/{_IN_FOLDER}")
        yield re.compile(rf"[^/]+-{name}{_NUMBERED}\.arrow")


def shards(directory: str, split: str) -> list[str]:
    """Return the names of a split's files below a directory, in order; [] if there are none.

    A directory that is called as the split may be the split itself.

    Raises:
        DataError: files of a numbered series are missing, or a split is there in two formats.
    """
    names = storage.list_files(directory)
    own = posixpath.basename(directory.rstrip("/")) in NAMES.get(split, (split,))
    patterns = [*_layouts(split), *([re.compile(_IN_FOLDER)] if own else [])]
    matches = ([found for name in names if (found := each.fullmatch(name))] for each in patterns)
    series = next(filter(None, matches), [])
    files = [found[0] for found in series]
    endings = sorted({posixpath.splitext(name)[1] for name in files})
    if len(endings) > 1:
        raise DataError(
            f"{directory} has the split {split} as {' and as '.join(endings)}; remove one of them, "
            f"or name the file with --set options.files.{split}=NAME"
        )
    wanted = {int(found["of"] or 0) or len(files) for found in series}
    if wanted - {len(files)}:
        raise DataError(
            f"{directory} has {len(files)} of the {max(wanted)} files of the split {split} "
            f"({files[0]}, …); get the others, too"
        )
    return files
