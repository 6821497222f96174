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
    r"(?:token|(?:password|passwd|passphrase|pwd|secret|credential|auth|authorization|cookie|"
    r"webhook|(?:api|access|secret|private|account|encryption|signing|ssh)[_-]?key|"
    r"connection[_-]?string)s?)\d*(?![a-z])"
)
_NAME = re.compile(  # words begin after a mark or, as in clientSecret, with a capital
    rf"(?:^|[._-]|(?<=[a-z])(?-i:(?=[A-Z]))){_WORDS}(?:[._-](?:id|string|value|url))?$"
    r"|(?:^|[._-])pass$",
    re.IGNORECASE,
)
_PASSWORD = re.compile(r"pass|pwd", re.IGNORECASE)  # which may be a number
_SPECIAL = re.compile(r"^(?:\[\w+\]|<\w+>|</\w+>)$")  # such as a tokenizer's mask_token
# (what stays before a secret, the secret); (?-i:…) counts capitals
_PATTERNS = [
    re.compile(rf"({before})({secret})", re.IGNORECASE | re.DOTALL)
    for before, secret in (
        (r"\b[a-z][a-z0-9+.-]*://", r"[^/\s@:]*:[^/\s]*(?=@)"),  # user:password@host
        (r"\b(?:https?|git|ssh|rediss?)://", r"[^/\s@]+(?=@)"),  # token@host
        (rf"[?&;][\w.-]*(?:{_WORDS}|signature|sig)[\w.-]*=", r"[^&;\s]+"),
        (  # a variable in a launcher's option, such as env=AWS_SECRET_ACCESS_KEY=…
            r"(?-i:\b[A-Z0-9_]*(?:PASSWORD|PASSWD|SECRET|TOKEN|API_?KEY|ACCESS_KEY|PRIVATE_KEY|"
            r"CREDENTIALS?|AUTH)(?![A-Z])[A-Z0-9_]*=)",
            r"\S+",
        ),
        (rf"--[\w.-]*{_WORDS}[\w.-]*[= ]", r"\S+"),
        (  # as databases and JSON write it
            r"(?:password|passwd|pwd|(?:api|access|secret)[_-]?key)(?:[\"']\s?:|=)\s?[\"']?",
            r"[^\s\"',;&}]+",
        ),
        (
            r"hooks\.slack\.com/(?:services|workflows)/|discord(?:app)?\.com/api/webhooks/|"
            r"webhook\.office\.com/|api\.telegram\.org/bot",
            r"\S+",
        ),
        (r"(?-i:\b(?:Bearer\s+|Authorization:\s*\w+\s+))", r"[\w.~+/=-]{8,}"),
        (r"\bX-[\w-]*(?:Key|Token):\s*", r"\S+"),
        (
            "",
            r"\b(?-i:hf_|gh[pousr]_|github_pat_|glpat-|nvapi-|xox[abprs]-|sk-|AKIA|ASIA|AIza|eyJ)"
            r"[\w-]{12,}(?:\.[\w-]+)*",
        ),
        ("", r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"),
    )
]
_OPTION = re.compile(rf"^--[\w.-]*{_WORDS}[\w.-]*$", re.IGNORECASE)  # its value is the next item


def redact(value: Any, key: str = "") -> Any:
    """Return the value with every secret replaced by `***`, in mappings and lists, too.

    `key`: name under which the value is stored, such as `notify.password`.
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
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and _NAME.search(key) and _PASSWORD.search(key):
        return REDACTED
    if not isinstance(value, str) or not value:
        return value
    if _NAME.search(key) and not _SPECIAL.match(value):
        return REDACTED
    again = {match[2] for pattern in _PATTERNS for match in pattern.finditer(value)}
    for pattern in _PATTERNS:
        value = pattern.sub(rf"\1{REDACTED}", value)
    # as where a message quotes a part of the URL before it
    again = {secret for secret in again if len(secret) >= ENVIRONMENT_CHARACTERS}
    for secret in [*_environment_secrets(), *sorted(again, key=len, reverse=True)]:
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
