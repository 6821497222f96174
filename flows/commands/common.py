"""What verbs share: the flag `--json` and the object that it prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object as the last line of standard output.")


def emit(value: Mapping[str, Any]) -> None:
    """Print the `--json` object: one line, the last of standard output."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()
