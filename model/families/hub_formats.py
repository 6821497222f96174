"""The Hugging Face formats of all families, by the table of families."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from cloze.core.errors import UsageError
from cloze.model.families.config import prediction_objectives
from cloze.model.families.hub_format import HubFormat
from cloze.model.families.registry import FAMILIES

OTHER_HUBS = ("CAUSAL_HUB", "GENERATOR_HUB")  # names of further formats in a family's module


def hub_of(family: str, heads: Mapping[str, Any] = MappingProxyType({})) -> HubFormat:
    """Return the Hugging Face format of a family, for a model with these heads.

    Raises:
        UsageError: the family is unknown, or has no Hugging Face format.
    """
    hubs, objectives = formats([family]), set(prediction_objectives(heads))
    if not hubs:
        known = ", ".join(sorted(exportable()))
        raise UsageError(f"family ({family!r}) has no Hugging Face form; choose from {known}")
    fitting = [hub for hub in hubs if objectives & set(hub.objectives)] or hubs[:1]
    whole = (hub for hub in fitting if frozenset(heads) - {*hub.unexported} in hub.architectures)
    return next(whole, fitting[0])


def formats(families: Iterable[str] = ()) -> list[HubFormat]:
    """Return the Hugging Face formats of families, else of all: `HUB` and others of modules."""
    modules = list(map(FAMILIES.find, families)) or FAMILIES.loaded().values()
    hubs = [getattr(module, name, None) for module in modules for name in ("HUB", *OTHER_HUBS)]
    return [hub for hub in hubs if hub is not None]


def exportable() -> tuple[str, ...]:
    """Return the families with a Hugging Face format."""
    return tuple(name for name, family in FAMILIES.loaded().items() if hasattr(family, "HUB"))
