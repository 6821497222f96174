"""The base of every stage's config, and how plain values become one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.core import fingerprints
from pipeline.core.errors import UsageError, did_you_mean
from pipeline.core.lock import LOCK as LOCK

ConfigT = TypeVar("ConfigT", bound=BaseModel)


class StageConfig(BaseModel):
    """Base of every stage's config: unknown keys are refused, values never change after validation.

    A field that names a path is no part of the result: subclasses list such fields in `path_fields`, and the
    fingerprint takes the content behind them instead.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def path_fields(cls) -> tuple[str, ...]:
        return ()

    def identity(self) -> dict[str, Any]:
        """What of the config takes part in the fingerprint."""
        return self.model_dump(mode="json", exclude=set(self.path_fields()))

    def external_fingerprints(self) -> dict[str, str]:
        """The fingerprints of the inputs that the config names by path, by field."""
        named = ((name, getattr(self, name)) for name in self.path_fields())
        return {name: fingerprints.input_fingerprint(path) for name, path in named if path is not None}


def parse_config(model: type[ConfigT], values: Mapping[str, Any], where: str) -> ConfigT:
    """Validate `values` as `model`; the first fault becomes one sentence with the field, the value and the remedy.

    Args:
        where: the section that the values come from, for the message.

    Raises:
        UsageError: an unknown key (with the nearest known one), a wrong type, or a value out of range.
    """
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(str(part) for part in (where, *fault["loc"]) if part != "")
        if fault["type"] == "extra_forbidden":
            known = _fields_at(model, fault["loc"][:-1])
            hint = did_you_mean(str(fault["loc"][-1]), known) if known else "remove it"
            raise UsageError(f"unknown config key {place}; {hint}") from error
        message = str(fault["msg"]).removeprefix("Value error, ")
        found = "" if fault["type"] == "missing" else f" (found {fault['input']!r})"
        raise UsageError(f"{place}{found}: {message}") from error


def _fields_at(model: type[BaseModel], location: tuple[int | str, ...]) -> set[str]:
    """The known keys of the model, or of the nested model, that `location` leads to."""
    for part in location:
        annotation = model.model_fields[part].annotation if isinstance(part, str) and part in model.model_fields else None
        nested = [t for t in (annotation, *getattr(annotation, "__args__", ())) if isinstance(t, type)]
        models = [t for t in nested if issubclass(t, BaseModel)]
        if not models and not isinstance(part, int):
            return set()
        model = models[0] if models else model
    return set(model.model_fields)
