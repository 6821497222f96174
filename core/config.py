"""Base class and validation of stage configs, and markers in the types of their fields.

A marker is an object in an `Annotated` type, at any depth: `Annotated[str, Mark()] | None`,
`tuple[Annotated[str, Mark()], ...]`, or a field of a nested pydantic model.
"""

from __future__ import annotations

import functools
import os
import types
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic import ValidatorFunctionWrapHandler as Read
from pydantic_core import to_jsonable_python

from cloze.core import plugins, storage
from cloze.core.artifacts import fingerprints
from cloze.core.artifacts.artifact import canonical_json
from cloze.core.errors import UsageError, did_you_mean
from cloze.core.hub_names import hub_url

NAMES_FILES = "names_files"  # class method of a nested model: whether the values name files


def field_types(model: type[BaseModel]) -> dict[str, Any]:
    """Return the type of each field with its markers, which pydantic stores separately."""
    fields = model.model_fields.items()
    return {
        name: Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
        for name, field in fields
    }


@functools.cache
def has_field_marker(model: type[BaseModel], name: str, mark: type) -> bool:
    """Return whether the field as a whole has the marker, in this class or in a base class."""
    bases = (
        base for base in model.__mro__ if issubclass(base, BaseModel) and name in base.model_fields
    )
    return any(
        isinstance(marker, mark) for base in bases for marker in base.model_fields[name].metadata
    )


def has_mark(annotation: Any, mark: type, _above: tuple[Any, ...] = ()) -> bool:
    """Return whether the marker is anywhere in the type, nested models included."""
    if _is_model(annotation):
        nested = () if annotation in _above else field_types(annotation).values()
        return any(has_mark(field, mark, (*_above, annotation)) for field in nested)
    if get_origin(annotation) is Annotated:
        inner, *marks = get_args(annotation)
        return any(isinstance(marker, mark) for marker in marks) or has_mark(inner, mark, _above)
    return any(has_mark(argument, mark, _above) for argument in get_args(annotation))


@functools.cache
def marked_fields(model: type[BaseModel], mark: type) -> tuple[str, ...]:
    """Return the names of the fields whose types contain the marker."""
    return tuple(
        name for name, annotation in field_types(model).items() if has_mark(annotation, mark)
    )


def map_marked(annotation: Any, value: Any, mark: type, function: Callable[[str], Any]) -> Any:
    """Apply `function` to the marked strings in `value`, which need not be valid yet."""
    if _is_model(annotation):
        names_files = getattr(annotation, NAMES_FILES, None)
        if not isinstance(value, Mapping) or (names_files is not None and not names_files(value)):
            return value
        nested = field_types(annotation)
        return {
            key: map_marked(nested[key], item, mark, function) if key in nested else item
            for key, item in value.items()
        }
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        if isinstance(value, str) and any(isinstance(marker, mark) for marker in arguments[1:]):
            return function(value)
        return map_marked(arguments[0], value, mark, function)
    if origin in (Union, types.UnionType):
        mapped = (map_marked(argument, value, mark, function) for argument in arguments)
        return next((changed for changed in mapped if changed != value), value)
    if not arguments or not isinstance(origin, type):
        return value
    if issubclass(origin, Mapping):
        if isinstance(value, Mapping):
            return {
                key: map_marked(arguments[1], item, mark, function) for key, item in value.items()
            }
        return value
    if isinstance(value, str):  # a single value of a field that also takes several
        return map_marked(arguments[0], value, mark, function)
    if isinstance(value, (list, tuple)):
        if Ellipsis in arguments or len(arguments) != len(value):
            arguments = arguments[:1] * len(value)
        return [
            map_marked(argument, item, mark, function)
            for argument, item in zip(arguments, value, strict=True)
        ]
    return value


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


# The base of stage configs, its fingerprint fields, and the validation of plain values.


class InputPathMark:
    """Marks a string that names a file or a directory to read."""


class NoFingerprintMark:
    """Marks a field that only controls observation: what is logged and when."""


class UnionTagMark:
    """Marks the field that selects the class of a nested config."""


T = TypeVar("T")
InputPath = Annotated[str, InputPathMark()]
NoFingerprint = Annotated[T, NoFingerprintMark()]
UnionTag = Annotated[T, UnionTagMark()]

ConfigT = TypeVar("ConfigT", bound=BaseModel)


class Values(BaseModel):
    """Immutable values: unknown keys are rejected; numbers are finite, and no truth values."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="wrap")
    @classmethod
    def _check_number(cls, value: Any, read: Read, field: ValidationInfo) -> Any:
        """Pydantic takes `steps: true` for 1 step, and integers of more than 64 bits."""
        if _counts_truth({cls.model_fields[field.field_name or ""].annotation}, value):
            raise ValueError("Input should be a number, not a truth value")
        number = read(value)
        if isinstance(number, int) and not -(1 << 63) <= number < 1 << 64:
            raise ValueError(f"Input should be less than {1 << 64}")
        return number


def _counts_truth(annotations: Collection[Any], value: Any) -> bool:
    """Return whether a truth value stands where the types take numbers, and none of them."""
    found = set().union(*map(_alternatives, annotations))
    if isinstance(value, bool):
        return not found & {bool, Any} and bool(found & {int, float})
    items = value.values() if isinstance(value, Mapping) else value
    inner = [argument for each in found for argument in get_args(each)]
    return (
        not isinstance(items, str)
        and isinstance(items, Collection)
        and any(_counts_truth(inner, item) for item in items)
    )


def _alternatives(annotation: Any) -> set[Any]:
    """Return the types that a field takes, without those within lists and mappings."""
    if get_origin(annotation) is Annotated:
        return _alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return set().union(*map(_alternatives, get_args(annotation)))
    return {annotation}


class StageConfig(Values):
    """Base of all stage configs: unknown keys are rejected, and validated values are immutable.

    The string literal below a field is its documentation and the help of its command-line option.
    Three markers in a field's type decide how the field counts in the fingerprint:

        data: InputPath | None = None              the content at the path counts, not the path
        log_every: NoFingerprint[int | None] = None    never counts: the result does not change
        family: UnionTag[str] = "bert"             counts even at its default

    Every other field counts if it differs from its default. So a new field changes no fingerprint
    until it is used. A changed default, or a changed meaning of a value, requires a higher
    `version` of the stage; tests/defaults.json detects a forgotten one.
    """

    mutually_exclusive: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """Groups of fields of which at most one may be set.

    A field set over a preset or a section unsets the others of its group.
    """

    @classmethod
    def path_fields(cls) -> tuple[str, ...]:
        """Return the fields that name files, at any depth."""
        return marked_fields(cls, InputPathMark)

    @classmethod
    def watching_fields(cls) -> tuple[str, ...]:
        """Return the fields that do not affect the result."""
        return tuple(
            name for name in cls.model_fields if has_field_marker(cls, name, NoFingerprintMark)
        )

    @classmethod
    def expand_shorthand(cls, field: str, value: Any) -> Mapping[str, Any] | None:
        """Return the mapping that a plain value of a field abbreviates, or None.

        A field that takes a name or a mapping needs an override, such as `{"preset": value}` for a
        model's name. Single keys of the field can then be set.
        """
        del field, value
        return None

    def fingerprint_fields(self) -> dict[str, Any]:
        """Return the fields that count in the fingerprint, without those that name files."""
        return _identity(self, without=self.path_fields())

    def external_fingerprints(self) -> dict[str, str]:
        """Return the fingerprint of each input that the config names by path, by field.

        A field with several paths, such as `tuple[InputPath, ...]` or a nested config, counts
        with its whole content in order.
        """
        annotations = field_types(type(self))
        hashes = {}
        for name in self.path_fields():
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, str):
                hashes[name] = fingerprints.input_fingerprint(value)
                continue
            content = map_marked(
                annotations[name], _plain(value), InputPathMark, fingerprints.input_fingerprint
            )
            hashes[name] = fingerprints.combine_hashes([("", canonical_json(content))])
        return hashes

    def plugin_rows(self) -> dict[str, plugins.Installed]:
        """Return the plug-ins of the rows that the config uses, by `table/row`."""
        return plugins.used("", self.model_dump(mode="json"))

    def check_inputs(self, keys: Collection[str]) -> None:
        """Reject inputs that do not match the config; called before a run and before the stage.

        `keys`: keys of the inputs, as in `cloze.core.stages.stage`.

        Raises UsageError: the inputs do not match the config.
        """
        del keys

    def empty_without(self, present: Collection[str]) -> str:
        """Return what the stage leaves empty in a run with these stages alone; "" if nothing."""
        del present
        return ""

    def check_data(self) -> None:
        """Raise DataError if named files cannot be what the stage reads; a plan calls it."""

    def missing(self) -> str:
        """Return a clause about the first named file that does not exist; empty if all exist."""
        for name in self.path_fields():
            value = getattr(self, name)
            if isinstance(value, str) and not storage.exists(value):
                return f"{value} does not exist"
        return ""


def _identity(config: BaseModel, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the fields that differ from their defaults, and union tags.

    Nested configs are compared with the defaults of their own class.
    """
    model = type(config)
    fields, paths = {}, marked_fields(model, InputPathMark)
    for name in model.model_fields:
        if name in without or has_field_marker(model, name, NoFingerprintMark):
            continue
        value = getattr(config, name)
        differs = value != model.model_fields[name].get_default(call_default_factory=True)
        if (
            differs
            or has_field_marker(model, name, UnionTagMark)
            or (value is not None and name in paths)
        ):
            fields[name] = _plain(value)
    return fields


def _plain(value: Any) -> Any:
    """Convert `value` to JSON types; nested configs become their `_identity`."""
    if isinstance(value, BaseModel):
        return _identity(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return to_jsonable_python(value)


def resolve_paths(model: type[BaseModel], values: Mapping[str, Any], base: str) -> dict[str, Any]:
    """Return the unvalidated `values` with relative `InputPath` fields made absolute from `base`.

    Names of data sets of the Hub become their URLs. URLs and values of a wrong type stay as they
    are; validation reports the latter. A nested config whose strings are not always paths defines a
    class method `names_files(values) -> bool`.
    """

    def absolute(path: str) -> str:
        path = hub_url(path)
        return path if "://" in path else os.path.join(base, os.path.expanduser(path))

    return dict(map_marked(model, values, InputPathMark, absolute))


def parse_config(model: type[ConfigT], values: Mapping[str, Any], where: str) -> ConfigT:
    """Validate `values` as `model`; report the first error with field, value and remedy.

    `where`: section of the values, for the message; within another config, see `within`.

    Raises:
        UsageError: an unknown key (with the nearest known one), a wrong type, or a value out of
            range.
    """
    try:
        return model.model_validate(dict(values), context={_SECTION: where})
    except ValidationError as error:
        # An unknown key first: it may be a missing one, misspelt.
        fault = min(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
        field = ".".join(str(component) for component in (where, *fault["loc"]) if component != "")
        if fault["type"] == "extra_forbidden":
            known = _fields_at(model, fault["loc"][:-1])
            hint = did_you_mean(str(fault["loc"][-1]), known) if known else "remove it"
            raise UsageError(f"unknown config key {field}; {hint}") from error
        if fault["type"] == "missing":
            info = model.model_fields.get(str(fault["loc"][0]))
            examples = info.examples if info is not None and len(fault["loc"]) == 1 else None
            how = f"give it: --set {field}='{examples[0]}'" if examples else "give it a value"
            raise UsageError(f"{field} is missing; {how}") from error
        message = str(fault["msg"]).removeprefix("Value error, ")
        # a rule that names its fields itself
        is_about_fields = fault["type"] == "value_error" and isinstance(fault["input"], Mapping)
        value = "" if is_about_fields else f" (found {fault['input']!r})"
        raise UsageError(f"{field}{value}: {message}") from error


_SECTION = "section"  # key of a validation's context: section of the config


def within(info: ValidationInfo, field: str) -> str:
    """Return the section of a field whose config a validator of another config parses."""
    return ".".join(filter(None, ((info.context or {}).get(_SECTION), field)))


def _fields_at(model: type[BaseModel], location: tuple[int | str, ...]) -> set[str]:
    """Return the known keys of the model, or of the nested model at `location`."""
    for key in location:
        field = model.model_fields.get(str(key))
        annotation = None if field is None else field.annotation
        models = [
            candidate for candidate in (annotation, *get_args(annotation)) if _is_model(candidate)
        ]
        if not models and not isinstance(key, int):
            return set()
        model = models[0] if models else model
    return set(model.model_fields)
