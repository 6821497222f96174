"""Redaction of passwords and keys in configs, URLs and command-line options.

Applied wherever values leave the run: parameters, tags and files for MLflow. A secret is recognised
by the name of its key, its place in a URL or option, its form, or a variable of the environment.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

REDACTED = "***"
ENVIRONMENT_CHARACTERS = 8  # shorter values of the environment occur by chance

_WORDS = (
    r"(?:password|passwd|passphrase|pwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|"
    r"account[_-]?key|credentials?|auth)(?![a-z])"
)
_NAME = re.compile(rf"(?:^|[._-]){_WORDS}(?:[._-](?:id|string|value))?$", re.IGNORECASE)
_SPECIAL = re.compile(r"^(?:\[\w+\]|<\w+>|</\w+>)$")  # such as a tokenizer's mask_token
_PATTERNS = (
    (
        re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/\s@:]*:[^/\s@]*@", re.IGNORECASE),
        rf"\1{REDACTED}@",
    ),  # user:password@host
    (
        re.compile(r"(\b(?:https?|git|ssh|rediss?)://)[^/\s@]+@", re.IGNORECASE),
        rf"\1{REDACTED}@",
    ),  # token@host
    (
        re.compile(rf"([?&;][\w.-]*(?:{_WORDS}|signature|sig)[\w.-]*=)[^&;\s]+", re.IGNORECASE),
        rf"\1{REDACTED}",
    ),
    (  # a variable in a launcher's option, such as env=AWS_SECRET_ACCESS_KEY=…
        re.compile(
            r"\b([A-Z0-9_]*(?:PASSWORD|PASSWD|SECRET|TOKEN|API_?KEY|ACCESS_KEY|PRIVATE_KEY|"
            r"CREDENTIALS?|AUTH)(?![A-Z])[A-Z0-9_]*=)\S+"
        ),
        rf"\1{REDACTED}",
    ),
    (re.compile(rf"(--[\w.-]*{_WORDS}[\w.-]*[= ])\S+", re.IGNORECASE), rf"\1{REDACTED}"),
    (
        re.compile(r"(hooks\.slack\.com/(?:services|workflows)/)\S+", re.IGNORECASE),
        rf"\1{REDACTED}",
    ),
    (re.compile(r"\b(Bearer\s+|Authorization:\s*\w+\s+)[\w.~+/=-]{8,}"), rf"\1{REDACTED}"),
    (re.compile(r"\b(?:hf_|gh[pousr]_|glpat-|xox[abprs]-|sk-|AKIA|ASIA)[\w-]{12,}"), REDACTED),
    (
        re.compile(
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
            re.DOTALL,
        ),
        REDACTED,
    ),
)
_OPTION = re.compile(rf"^--[\w.-]*{_WORDS}[\w.-]*$", re.IGNORECASE)  # its value is the next item


def redact(value: Any, key: str = "") -> Any:
    """Return the value with every secret replaced by `***`, in mappings and lists, too.

    Args:
        key: name under which the value is stored, such as `notify.password`.
    """
    if isinstance(value, Mapping):
        return {name: redact(item, str(name)) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        previous_items = ["", *value]
        return [
            REDACTED
            if isinstance(previous, str) and _OPTION.match(previous) and isinstance(item, str)
            else redact(item, key)
            for previous, item in zip(previous_items, value, strict=False)
        ]
    if not isinstance(value, str) or not value:
        return value
    if _NAME.search(key) and not _SPECIAL.match(value):
        return REDACTED
    for pattern, replacement in _PATTERNS:
        value = pattern.sub(replacement, value)
    for secret in _environment_secrets():
        value = value.replace(secret, REDACTED)
    return value


def holds_secret(content: Any) -> bool:
    """Return whether JSON content contains anything to redact."""
    return json.dumps(redact(content)) != json.dumps(content)


def _environment_secrets() -> list[str]:
    """Return the secrets in environment variables, longest first; paths such as $PWD are none."""
    secrets = {
        value
        for name, value in os.environ.items()
        if _NAME.search(name) and len(value) >= ENVIRONMENT_CHARACTERS and not value.startswith("/")
    }
    return sorted(secrets, key=len, reverse=True)
