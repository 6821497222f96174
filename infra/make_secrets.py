"""`python make_secrets.py DIRECTORY`: make the secrets of compose.yaml that are missing there."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
from pathlib import Path

PASSWORDS = ("postgres", "prefect", "mlflow", "grafana")


def make_secrets(directory: Path) -> None:
    """Make the secrets that are missing, in a directory that only their owner may enter.

    The files themselves are readable, since containers read them as another user.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def write(name: str, text: str) -> None:
        with (
            contextlib.suppress(FileExistsError),
            open(directory / name, "x", opener=lambda p, flags: os.open(p, flags, 0o644)) as f,
        ):
            f.write(text)

    for name in (*(f"{each}_password" for each in PASSWORDS), "store_secret_key", "pool_secret"):
        write(name, secrets.token_hex(16))
    key = {"accessKey": "cloze", "secretKey": (directory / "store_secret_key").read_text()}
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    identity = {"name": "cloze", "credentials": [key], "actions": actions}
    write("store_config", json.dumps({"identities": [identity]}))


if __name__ == "__main__":
    make_secrets(Path(sys.argv[1]))
