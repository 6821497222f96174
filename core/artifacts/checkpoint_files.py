"""Files of a complete checkpoint against `checkpoint.json`, which has their sizes and hashes."""

from __future__ import annotations

import json

from cloze.core import storage
from cloze.core.artifacts.checkpoints import COMPLETE
from cloze.core.errors import DataError

FORMAT = 1
TRAINING = "training"  # directory of the files that only `resume` reads


def recorded_hashes(directory: str) -> dict[str, tuple[str, int]]:
    """Return sha256 and size of each file of a checkpoint, as `checkpoint.json` has them.

    Raises DataError: the checkpoint is incomplete, or `checkpoint.json` is damaged.
    """
    name = storage.join(directory, COMPLETE)
    try:
        content = json.loads(storage.read_at_once(name))
        if content["format"] != FORMAT:
            raise DataError(
                f"{name} has format {content['format']}, this program reads {FORMAT}; use the "
                f"Cloze that made it"
            )
        return {
            str(entry["path"]): (str(entry["sha256"]), int(entry["size"]))
            for entry in content["files"]
        }
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(
            f"{directory} has no complete checkpoint ({COMPLETE} is missing); use another one"
        ) from error
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"{name} is damaged ({error!r}); use another checkpoint") from error


def verify(directory: str, *, training: bool = True) -> None:
    """Check every file of a complete checkpoint against its recorded size and sha256.

    `training`: False skips the files that only `resume` reads, most of the bytes.

    Raises DataError: the checkpoint is incomplete, or the named file is missing or damaged.
    """
    recorded, present = recorded_hashes(directory), set(storage.list_files(directory))
    for path, (digest, size) in sorted(recorded.items()):
        if not training and path.startswith(TRAINING + "/"):
            continue
        file = storage.join(directory, path)
        if path not in present:
            raise DataError(f"{file} is missing from the checkpoint; use another checkpoint")
        actual_digest, actual_size = storage.sha256(file)
        if (actual_digest, actual_size) != (digest, size):
            raise DataError(
                f"{file} has sha256 {actual_digest[:12]}… and {actual_size} bytes, {COMPLETE} says "
                f"{digest[:12]}… and {size}; use another checkpoint"
            )
