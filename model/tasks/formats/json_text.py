"""JSON as users write it: whatever is wrong with it is one kind of error, with its place."""

from __future__ import annotations

import json
from typing import Any

HALVES = "\\ud"  # opens an escaped half of a character beyond the first 65,536; UTF-8 itself holds none


def load_json(text: str) -> Any:
    """What the text says.

    Raises:
        json.JSONDecodeError: it is no JSON; or JSON that cannot be used: nested too deeply, with a number of thousands of digits, or with
            half a character (`\\ud83d` alone), which no tokenizer takes.
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
            raise json.JSONDecodeError(f"{half} is half a character", text, max(0, lowered.find(half))) from None
    return found
