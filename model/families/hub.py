"""What a family's `hub.py` holds: names of parameters and of config fields, ours beside Hugging Face's, read both ways."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError
from torch import Tensor

from model.families.config import ModelConfig, ways
from model.families.key_map import KeyMap
from model.families.presets import parse_model
from model.families.table import FAMILIES, has_part, part
from model.layers.moved import merged
from pipeline.core.errors import DataError, UsageError

OUTPUTS = {
    "logits": "mlm_logits",
    "prediction_logits": "mlm_logits",
    "seq_relationship_logits": "pair_logits",
    "sop_logits": "pair_logits",
}

WORDS = "encoder.embeddings.word.weight"
OWN = "cloze_model"  # their config's key for what only our config says
TASK = "cloze_task"  # and for what a checkpoint's `task` says

_NUMBER = re.compile(r"\.\d+\.")

Row = tuple[str, str]

# Heads of fine-tuning as most classes name them; `classifier` stands in each family's own table.
TASK_ROWS: dict[str, tuple[Row, ...]] = {
    "span": (("span.{p}", "qa_outputs.{p}"),),
    "token_classifier": (("token_classifier.{p}", "classifier.{p}"),),
    "choice": (("choice.{p}", "classifier.{p}"),),
}
EMBEDDING = "embedding"  # a head without weights: vectors are the encoder's states, pooled by whoever reads them
LABELLED = ("classifier", "token_classifier")  # heads with an output a label
POOLED = ("classifier", "choice")  # heads on one vector a sequence; the others stand on every position


def task_head(heads: Iterable[str]) -> str | None:
    """The head of fine-tuning among a checkpoint's heads; None: it was pretrained."""
    return next((head for head in heads if head in ("classifier", *TASK_ROWS)), None)


def fine_tuned(prefix: str) -> dict[frozenset[str], str]:
    """The classes of fine-tuned models, by head, of a family whose classes begin with `prefix`."""
    return {
        frozenset({"classifier"}): f"{prefix}ForSequenceClassification",
        frozenset({"span"}): f"{prefix}ForQuestionAnswering",
        frozenset({"token_classifier"}): f"{prefix}ForTokenClassification",
        frozenset({"choice"}): f"{prefix}ForMultipleChoice",
        frozenset({EMBEDDING}): f"{prefix}Model",
    }


# (config, weights, positions) of a model of one family to (config, weights) of another
Conversion = Callable[[ModelConfig, Mapping[str, Tensor], int], tuple[ModelConfig, dict[str, Tensor]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """One family's form at Hugging Face.

    Attributes:
        family: our name of it.
        model_type: `model_type` in Hugging Face's config.
        keys: the parameters.
        fields: config fields, ours -> theirs.
        fixed: their config values that this family cannot do otherwise; checked at import, written at export.
        architectures: the set of our heads -> the Hugging Face class that has just these.
        task_rows: our heads of fine-tuning -> parameters that stand in place of the table's in a model with that head.
        refused: our heads of fine-tuning -> what their class with that head does otherwise, so that the same weights say other things.
        copies: their names of tied copies that files may hold beside the original -> the original.
        legacy: parts of names in files of old versions -> what they are called now.
        ignored: names that are no parameters; `{n}` stands for a layer's number.
        base: what their names of the encoder's parameters begin with, which files of the encoder alone leave out.
        transposed: ends of our names of matrices that they hold the other way round.
        unexported: our heads that have no Hugging Face form; they stay behind.
        encoder_alone: our heads of pretraining with which nothing but the encoder has a Hugging Face form.
        unused: beginnings of names of their parameters that no head of ours reads; they are left out.
        unread: a model of ours -> our names of parameters that their files may hold and it does without; they are left out.
        outputs: what transformers' heads give, their names -> ours.
        converts: families whose weights can become this one's -> how.
        write: their config as the table gives it -> as their class reads it. `read` is the way back.
    """

    family: str
    model_type: str
    keys: KeyMap
    fields: Mapping[str, str]
    fixed: Mapping[str, Any]
    architectures: Mapping[frozenset[str], str]
    task_rows: Mapping[str, tuple[Row, ...]] = field(default_factory=lambda: dict(TASK_ROWS))
    refused: Mapping[str, str] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)
    legacy: Mapping[str, str] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()
    base: str = ""
    transposed: tuple[str, ...] = ()
    unexported: tuple[str, ...] = ()
    encoder_alone: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    unread: Callable[[ModelConfig], tuple[str, ...]] = lambda model: ()
    outputs: Mapping[str, str] = field(default_factory=lambda: dict(OUTPUTS))
    converts: Mapping[str, Conversion] = field(default_factory=dict)
    write: Callable[[dict[str, Any]], dict[str, Any]] = dict
    read: Callable[[dict[str, Any]], dict[str, Any]] = dict

    def to_config(self, model: ModelConfig, heads: Mapping[str, Any], task: Mapping[str, Any] | None) -> dict[str, Any]:
        """The content of Hugging Face's config.json.

        Raises:
            DataError: Hugging Face has no class with these heads, or one that computes something else.
        """
        for head in heads:
            if head in self.refused:
                raise DataError(f"{head} (a head of this {self.family} model) has no Hugging Face form: {self.refused[head]}")
        way = ways(heads)
        if way and not {"mlm", "lm"} & set(way):
            raise DataError(
                f"masked_lm (a head of this {self.family} model) was trained on {', '.join(way)} and names tokens at the position before"
                " them, which no Hugging Face class of the family does; train it on with mlm, or fine-tune it, and export that"
            )
        architecture = self.architectures.get(frozenset(heads) - set(self.unexported))
        if architecture is None:
            raise DataError(
                f"heads ({', '.join(sorted(heads))}) of a {self.family} model have no Hugging Face class; export another checkpoint"
            )
        values = model.model_dump(mode="json")
        config = self.write({theirs: values[ours] for ours, theirs in self.fields.items()})
        config |= self._own(model)
        config |= {**self.fixed, "model_type": self.model_type, "architectures": [architecture], "dtype": "float32"}
        if task is not None:
            config |= _labels(heads, task)
            config[TASK] = dict(task)
        return config

    def head_of(self, config: Mapping[str, Any]) -> str | None:
        """The head of fine-tuning that a model of theirs has, by the class that its config names; None: another one, or none."""
        names = {name: task_head(heads) for heads, name in self.architectures.items()}
        return next((names[name] for name in config.get("architectures") or () if name in names), None)

    def keys_for(self, heads: Iterable[str]) -> KeyMap:
        """The table of a model with these heads."""
        own = [row for head in heads for row in self.task_rows.get(head, ())]
        return KeyMap([*own, *self.keys.rows]) if own else self.keys

    def _own(self, model: ModelConfig) -> dict[str, Any]:
        """What of our config transformers has no field for, where it is not the default: it comes back with the directory."""
        unsaid = set(type(model).model_fields) - set(self.fields) - {"family"}
        values = model.model_dump(mode="json", include=unsaid, exclude_defaults=True)
        return {OWN: values} if values else {}

    def from_config(self, config: Mapping[str, Any], where: str) -> ModelConfig:
        """Our config of what the file `where` says. A field that it leaves out has its Hugging Face default, which is ours.

        Raises:
            DataError: a value that this family does not have.
        """
        for name, value in self.fixed.items():
            if config.get(name, value) != value:
                raise DataError(f"{where} has {name} {config[name]!r}, Cloze's {self.family} has {value!r}; use another model")
        found = self.read(dict(config))
        values = {ours: found[theirs] for ours, theirs in self.fields.items() if theirs in found}
        values |= dict(config.get(OWN, {}))
        if not values.get("vocab_size"):
            raise DataError(f"{where} has no vocab_size; use a complete Hugging Face directory")
        try:
            return parse_model({"family": self.family, **values})
        except ValidationError as error:
            fault = error.errors()[0]
            name = self.fields.get(str(fault["loc"][0]), str(fault["loc"][0])) if fault["loc"] else "a value"
            message = str(fault["msg"]).removeprefix("Value error, ")
            raise DataError(f"{where}: {name} ({fault['input']!r}) does not fit: {message}") from error

    def to_state(self, state: Mapping[str, Tensor], heads: Iterable[str] = ()) -> dict[str, Tensor]:
        """Our weights under Hugging Face's names; tied copies are left out, as transformers itself does.

        Args:
            heads: of the model, as of `to_config`.

        Raises:
            DataError: a parameter is not in the table.
        """
        named = {}
        heads = tuple(heads)
        keys = self.keys_for(heads)
        for ours, tensor in self.exported(state, heads).items():
            theirs = keys.theirs(ours)
            if theirs is None:
                raise DataError(
                    f"the parameter {ours} has no Hugging Face name in the {self.family} table; export another checkpoint"
                )
            named[theirs] = self._turned(ours, tensor)
        return named

    def exported(self, state: Mapping[str, Tensor], heads: Iterable[str] = ()) -> dict[str, Tensor]:
        """What of the weights of our model with these heads has a Hugging Face form. Vectors do without a pooler."""
        left = {*self.unexported, *(("pooler",) if EMBEDDING in heads else ())}
        there = {name.split(".", 1)[0] for name in state}
        kept = {"encoder"} if there & set(self.encoder_alone) else there - left
        return {name: tensor for name, tensor in merged(state).items() if name.split(".", 1)[0] in kept}

    def from_state(self, state: Mapping[str, Tensor], where: str, head: str | None = None) -> dict[str, Tensor]:
        """Hugging Face's weights, read from `where`, under our names.

        Args:
            head: of fine-tuning, that the model has, see `head_of`.

        Raises:
            DataError: a name is not in the table, or a copy differs from what it should be tied to.
        """
        current = {self._current(name): tensor for name, tensor in state.items()}
        prefix = f"{self.keys.theirs(WORDS)}".split(".", 1)[0] + "."
        if not any(name.startswith(prefix) for name in current):  # their encoder was saved alone
            current = {prefix + name: tensor for name, tensor in current.items()}
        named: dict[str, Tensor] = {}
        keys = self.keys_for(() if head is None else (head,))
        for theirs, tensor in current.items():
            if _NUMBER.sub(".{n}.", f".{theirs}")[1:] in self.ignored or (
                theirs.startswith(self.unused) and keys.ours(theirs) is None
            ):
                continue
            original = self.copies.get(theirs)
            if original in current:
                if not _equal(tensor, current[original]):
                    raise DataError(f"{where}: {theirs} differs from {original}, which it must be tied to; use another model")
                continue
            ours = keys.ours(original or theirs)
            if ours is None:
                raise DataError(f"{where} holds {theirs}, which the {self.family} table does not know; use another model")
            named[ours] = self._turned(ours, tensor.float())
        return named

    def _current(self, name: str) -> str:
        for old, new in self.legacy.items():
            name = name.replace(old, new)
        alone = self.keys.ours(name) is None and self.keys.ours(self.base + name) is not None
        return self.base + name if alone else name

    def _turned(self, ours: str, tensor: Tensor) -> Tensor:
        """The parameter of that name as the other side holds it."""
        return tensor.t().contiguous() if ours.endswith(self.transposed) else tensor


def _labels(heads: Iterable[str], task: Mapping[str, Any]) -> dict[str, Any]:
    """The names of a labelled head's outputs, as their config has them; one output without a name is a number."""
    if not set(heads) & set(LABELLED):
        return {}
    labels = [str(label) for label in task.get("labels") or ()]
    found: dict[str, Any] = {} if labels else {"problem_type": "regression"}
    names = labels or ["LABEL_0"]
    found["id2label"] = {str(number): label for number, label in enumerate(names)}
    found["label2id"] = {label: number for number, label in enumerate(names)}
    return found


def _equal(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and bool((first == second).all())


def hub_of(family: str) -> Hub:
    """The Hugging Face form of one of our families.

    Raises:
        UsageError: the family is unknown, or has none.
    """
    if not has_part(family, "hub"):
        raise UsageError(f"family ({family!r}) has no Hugging Face form; choose from {', '.join(sorted(exportable()))}")
    hub: Hub = part(family, "hub:HUB")
    return hub


def exportable() -> tuple[str, ...]:
    """The families that have a Hugging Face form."""
    return tuple(family for family in FAMILIES if has_part(family, "hub"))
