"""What must not be shown or recorded: passwords and keys that stand in configs, addresses and options. One function masks them all.

It is used wherever values leave the run: parameters, tags and files that MLflow gets. It knows a secret by the name of its key, by its
place in an address or an option, by its shape, and by what the environment holds under a secret's name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

MASK = "***"
ENVIRONMENT_CHARACTERS = 8  # shorter values of the environment occur by chance

_WORDS = r"(?:password|passwd|passphrase|pwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|account[_-]?key|credentials?|auth)(?![a-z])"
_NAME = re.compile(rf"(?:^|[._-]){_WORDS}(?:[._-](?:id|string|value))?$", re.IGNORECASE)
_SPECIAL = re.compile(r"^(?:\[\w+\]|<\w+>|</\w+>)$")  # a tokenizer's mask_token is none
_PATTERNS = (
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/\s@:]*:[^/\s@]*@", re.IGNORECASE), rf"\1{MASK}@"),  # user:password@host
    (re.compile(r"(\b(?:https?|git|ssh|rediss?)://)[^/\s@]+@", re.IGNORECASE), rf"\1{MASK}@"),  # token@host
    (re.compile(rf"([?&;][\w.-]*(?:{_WORDS}|signature|sig)[\w.-]*=)[^&;\s]+", re.IGNORECASE), rf"\1{MASK}"),
    (re.compile(rf"(--[\w.-]*{_WORDS}[\w.-]*[= ])\S+", re.IGNORECASE), rf"\1{MASK}"),
    (re.compile(r"(hooks\.slack\.com/(?:services|workflows)/)\S+", re.IGNORECASE), rf"\1{MASK}"),
    (re.compile(r"\b(Bearer\s+|Authorization:\s*\w+\s+)[\w.~+/=-]{8,}"), rf"\1{MASK}"),
    (re.compile(r"\b(?:hf_|gh[pousr]_|glpat-|xox[abprs]-|sk-|AKIA|ASIA)[\w-]{12,}"), MASK),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), MASK),
)
_OPTION = re.compile(rf"^--[\w.-]*{_WORDS}[\w.-]*$", re.IGNORECASE)  # its value is the next one


def masked(value: Any, key: str = "") -> Any:
    """The value with every secret in it replaced by `***`: mappings and lists as they are, but for their strings.

    Args:
        key: the name that the value stands under, such as `notify.password`.
    """
    if isinstance(value, Mapping):
        return {name: masked(item, str(name)) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        before = ["", *value]
        return [
            MASK if isinstance(last, str) and _OPTION.match(last) and isinstance(item, str) else masked(item, key)
            for last, item in zip(before, value, strict=False)
        ]
    if not isinstance(value, str) or not value:
        return value
    if _NAME.search(key) and not _SPECIAL.match(value):
        return MASK
    for pattern, replacement in _PATTERNS:
        value = pattern.sub(replacement, value)
    for secret in _of_the_environment():
        value = value.replace(secret, MASK)
    return value


def _of_the_environment() -> list[str]:
    """The secrets that the environment holds; a path, such as that of a file of credentials, or $PWD, is none."""
    found = {value for name, value in os.environ.items() if _NAME.search(name) and not value.startswith("/")}
    return sorted((value for value in found if len(value) >= ENVIRONMENT_CHARACTERS), key=len, reverse=True)
