"""The base of every stage's config: what of it names the result, which of its fields name files, and how plain values become one."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import to_jsonable_python

from pipeline.core import fingerprints, storage
from pipeline.core.annotations import field_types, is_marked, map_marked, marked_fields
from pipeline.core.artifact import canonical_json
from pipeline.core.errors import UsageError, did_you_mean


class InputPathMark:
    """Marks a string that names a file or a directory to read."""


class WatchingMark:
    """Marks a field that says only how training or building is looked at: what is logged and when."""


class TagMark:
    """Marks the field that tells classes of nested configs apart."""


T = TypeVar("T")
InputPath = Annotated[str, InputPathMark()]
Watching = Annotated[T, WatchingMark()]
Tag = Annotated[T, TagMark()]

ConfigT = TypeVar("ConfigT", bound=BaseModel)


class StageConfig(BaseModel):
    """Base of every stage's config: unknown keys are refused, values never change after validation.

    The string literal below a field describes it; it is also the help of the command line's option. Three marks in a field's type say
    how it counts in the fingerprint:

        data: InputPath | None = None            a path: what it leads to counts, not the path itself
        log_every: Watching[int | None] = None   changes nothing in the result: never counts
        family: Tag[str] = "bert"                of a nested config with subclasses: counts even at its default

    Every other field counts where it differs from its default. So a new field changes no fingerprint as long as nobody uses it, and
    whoever changes a default, or what a value means, raises the stage's `version`; tests/defaults.json notices where that is forgotten.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    alternatives: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """Fields of which at most one can be given. Who sets one of them over a preset or a section takes back the others that stand there."""

    @classmethod
    def path_fields(cls) -> tuple[str, ...]:
        """The fields that name files, anywhere in them."""
        return marked_fields(cls, InputPathMark)

    @classmethod
    def watching_fields(cls) -> tuple[str, ...]:
        """The fields that say only how the work is looked at."""
        return tuple(name for name in cls.model_fields if is_marked(cls, name, WatchingMark))

    @classmethod
    def expand(cls, field: str, value: Any) -> Mapping[str, Any] | None:
        """The mapping that a plain value of a field stands for, so that one key of it can be set; None: it stands for none.

        A class whose field takes a name or a mapping says so, such as `{"preset": value}` of a model's name.
        """
        del field, value
        return None

    def identity(self) -> dict[str, Any]:
        """What of the config takes part in the fingerprint: fields that differ from their defaults, without paths and what is for watching."""
        return _identity(self, without=self.path_fields())

    def external_fingerprints(self) -> dict[str, str]:
        """The fingerprints of the inputs that the config names by path, by field.

        A field that holds more than one path, such as `tuple[InputPath, ...]` or a nested config, counts with all it holds and its order.
        """
        annotations = field_types(type(self))
        found = {}
        for name in self.path_fields():
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, str):
                found[name] = fingerprints.input_fingerprint(value)
                continue
            content = map_marked(annotations[name], _plain(value), InputPathMark, fingerprints.input_fingerprint)
            found[name] = fingerprints.combine([("", canonical_json(content))])
        return found

    def check_inputs(self, keys: Collection[str]) -> None:
        """Refuse inputs that do not fit what the config says of them; called before a run begins, and before the stage does.

        Args:
            keys: of the inputs, as in `pipeline.core.roles`.

        Raises:
            UsageError: they do not.
        """
        del keys

    def missing(self) -> str:
        """Which of the files that it names is not there, as a clause; empty where all are."""
        for name in self.path_fields():
            value = getattr(self, name)
            if isinstance(value, str) and not storage.exists(value):
                return f"{value} does not exist"
        return ""


def _identity(config: BaseModel, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields that differ from their defaults, and tags; nested configs likewise, each compared with the defaults of its own class."""
    model = type(config)
    found, paths = {}, marked_fields(model, InputPathMark)
    for name in model.model_fields:
        if name in without or is_marked(model, name, WatchingMark):
            continue
        value = getattr(config, name)
        differs = value != model.model_fields[name].get_default(call_default_factory=True)
        if differs or is_marked(model, name, TagMark) or (value is not None and name in paths):
            found[name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    """`value` as JSON has it; configs inside as their identity."""
    if isinstance(value, BaseModel):
        return _identity(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return to_jsonable_python(value)


def resolve_paths(model: type[BaseModel], values: Mapping[str, Any], base: str) -> dict[str, Any]:
    """`values`, not validated yet, with the paths in fields of type `InputPath` made absolute: relative ones begin at `base`.

    URLs stay as they are, and so do values of another type than the field's: validation will tell of them. A nested config whose
    strings are not always paths says so by a class method `names_files(values) -> bool`.
    """

    def absolute(path: str) -> str:
        return path if "://" in path or os.path.isabs(path) else os.path.join(base, path)

    return dict(map_marked(model, values, InputPathMark, absolute))


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
        if fault["type"] == "missing":
            raise UsageError(f"{place} is missing; {_example(model, fault['loc'], place)}") from error
        message = str(fault["msg"]).removeprefix("Value error, ")
        several = fault["type"] == "value_error" and isinstance(fault["input"], Mapping)  # a rule that names its fields itself
        found = "" if several else f" (found {fault['input']!r})"
        raise UsageError(f"{place}{found}: {message}") from error


def _example(model: type[BaseModel], location: tuple[int | str, ...], place: str) -> str:
    """How to give what is missing: by the field's example, where it has one."""
    field = model.model_fields.get(str(location[0])) if len(location) == 1 else None
    return f"give it: --set {place}='{field.examples[0]}'" if field is not None and field.examples else "give it a value"


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
