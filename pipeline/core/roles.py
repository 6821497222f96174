"""The names of a stage's inputs. A role that takes one goes by itself, `dataset`; of one that takes several each has a name, `dataset/wiki`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from pipeline.core.errors import UsageError

BELOW = "/"
_NAMED = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]*)=(.+)", re.DOTALL)


def role_of(key: str) -> str:
    """`dataset` of `dataset/wiki`."""
    return key.partition(BELOW)[0]


def name_of(key: str) -> str:
    """`wiki` of `dataset/wiki`; nothing of `dataset`."""
    return key.partition(BELOW)[2]


def below(role: str, inputs: Mapping[str, str]) -> dict[str, str]:
    """Those of a role that takes several, by name, in the order of their names; one alone has none: ''."""
    return dict(sorted((name_of(key), path) for key, path in inputs.items() if role_of(key) == role))


def named(text: str) -> tuple[str, str]:
    """`NAME=PLACE` as (name, place); a place alone has the name ''."""
    found = _NAMED.fullmatch(text)
    return (found[1], found[2]) if found else ("", text)


def spread(role: str, texts: Sequence[str], usual: Callable[[str], str]) -> dict[str, str]:
    """What a user wrote for a role that takes several, `PLACE` or `NAME=PLACE` each, by the keys of the inputs; one alone is not named.

    Args:
        usual: the name of a place that is given none.

    Raises:
        UsageError: there is none, or two go by one name.
    """
    if not texts:
        raise UsageError(f"{role} names nothing; name at least one")
    found: dict[str, str] = {}
    for text in texts:
        name, place = named(text)
        name = name or usual(place)
        key = role if len(texts) == 1 else f"{role}{BELOW}{name}"
        if key in found:
            same = "is named twice" if found[key] == place else f"would be two, {found[key]} and {place}"
            raise UsageError(f"{role} {name!r} {same}; name each once, and where names meet as NAME=PATH")
        found[key] = place
    return found
