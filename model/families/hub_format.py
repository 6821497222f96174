"""Hugging Face formats of model families: names of parameters and config fields, both ways.

Imports no torch; the families' modules build their formats with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from cloze.core.errors import DataError
from cloze.model.families.config import ModelConfig, prediction_objectives
from cloze.model.families.key_map import POSITION_IDS, Drop, KeyMap
from cloze.model.families.registry import parse_model

if TYPE_CHECKING:
    from torch import Tensor

    from cloze.pipeline.tokenizer.special import SpecialTokens

WORDS = "encoder.embeddings.word.weight"
CLOZE_FIELDS = "cloze_model"  # key in config.json for fields that only Cloze's config has
TIED = "tie_word_embeddings"
TASK = "cloze_task"  # key in config.json for a checkpoint's `task`
# Values of fields that no family here computes otherwise. Today's transformers ignores some, but
# files of the versions that read them have weights that were trained with them.
REQUIRED: Mapping[str, Any] = {
    "position_embedding_type": "absolute",
    "add_cross_attention": False,
    "pruned_heads": {},
}

# what wrappers of torch put into names
_WRAPPERS = re.compile(
    r"(?<![^.])(module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)

Row = tuple[str, str]
# Fine-tuning heads as most classes name them; `classifier` is in each family's own table.
TASK_ROWS: dict[str, tuple[Row, ...]] = {
    "span": (("span.{p}", "qa_outputs.{p}"),),
    "token_classifier": (("token_classifier.{p}", "classifier.{p}"),),
    "choice": (("choice.{p}", "classifier.{p}"),),
}
EMBEDDING = "embedding"  # head without weights: the encoder's states, pooled by their reader
ENCODER = frozenset({EMBEDDING})
LABELLED = ("classifier", "token_classifier")  # heads with one output per label
POOLED = ("classifier", "choice")  # heads on one vector per sequence, not on every position


def without_nulls(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Hugging Face config without null fields, which mean the same as missing ones."""
    return {"is_decoder": False, **{k: value for k, value in config.items() if value is not None}}


def task_head(heads: Iterable[str]) -> str | None:
    """Return the fine-tuning head among a checkpoint's heads; None if it was pretrained."""
    return next((head for head in heads if head in ("classifier", *TASK_ROWS)), None)


def same(*names: str) -> dict[str, str]:
    """Return config fields that have one name in Cloze and Hugging Face."""
    return {name: name for name in names}


def fine_tuned(prefix: str) -> dict[frozenset[str], str]:
    """Return the Hugging Face classes of fine-tuned models by head, for class prefix `prefix`."""
    return {
        frozenset({"classifier"}): f"{prefix}ForSequenceClassification",
        frozenset({"span"}): f"{prefix}ForQuestionAnswering",
        frozenset({"token_classifier"}): f"{prefix}ForTokenClassification",
        frozenset({"choice"}): f"{prefix}ForMultipleChoice",
        frozenset({EMBEDDING}): f"{prefix}Model",
    }


# maps (config, weights, positions) of a family to (config, weights) of another
Conversion = Callable[
    [ModelConfig, Mapping[str, "Tensor"], int], tuple[ModelConfig, dict[str, "Tensor"]]
]


class HubFormat:
    """Hugging Face format of one family, which overrides what differs.

    Attributes:
        family: Cloze's name of the family.
        model_type: `model_type` in Hugging Face's config.
        aliases: other `model_type`s that can be read -> the beginning of their classes' names.
        keys: parameter names.
        fields: config fields, Cloze -> Hugging Face.
        fixed: Hugging Face config values that this family requires, checked at import.
        defaults: values of missing fields in Hugging Face's config, where they are not Cloze's.
        architectures: set of heads -> Hugging Face class with exactly these. For `…ForPreTraining`,
            config.json names `…ForMaskedLM`, as bert-base-uncased does.
        objectives: objectives of the masked_lm head by which the class predicts; see `hub_of`.
        task_rows: fine-tuning head -> parameter names that replace rows of `keys`.
        unexported: heads without a Hugging Face form, which an export leaves out.
        encoder_alone: heads with which only the encoder is exported.
        refused: fine-tuning head -> why Hugging Face's class computes something else.
        drops: weights that an import leaves out besides `POSITION_IDS`; the first that fits holds.
        legacy: parts of names in files of old versions -> their current form.
        base: prefix of Hugging Face's encoder parameters; files of the encoder alone omit it.
        converts: families that can be converted to this one -> conversion.
    """

    family: str
    model_type: str
    keys: KeyMap
    fields: Mapping[str, str]
    fixed: Mapping[str, Any]
    architectures: Mapping[frozenset[str], str]
    aliases: Mapping[str, str] = MappingProxyType({})
    defaults: Mapping[str, Any] = MappingProxyType({})
    objectives: tuple[str, ...] = ("mlm",)
    task_rows: Mapping[str, tuple[Row, ...]] = TASK_ROWS
    unexported: tuple[str, ...] = ()
    encoder_alone: tuple[str, ...] = ()
    refused: Mapping[str, str] = MappingProxyType({})
    drops: tuple[Drop, ...] = ()
    legacy: Mapping[str, str] = MappingProxyType({})
    base: str = ""
    converts: Mapping[str, Conversion] = MappingProxyType({})

    def write(self, config: dict[str, Any]) -> dict[str, Any]:
        """Adapt a Hugging Face config after `fields` is applied."""
        return config

    def read(self, config: dict[str, Any]) -> dict[str, Any]:
        """Convert a Hugging Face config with its defaults; the inverse of `write`."""
        return config

    def fill(
        self, model: Any, config: Mapping[str, Any], state: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """Add to imported weights what Hugging Face's config implies."""
        return state

    def to_theirs(self, model: Any, name: str, tensor: Tensor) -> Tensor:
        """Return the weight with this name of Cloze's as Hugging Face stores it."""
        return tensor

    to_ours = to_theirs  # the inverse; by default both leave the weight as it is

    def probe(
        self, model: Any, heads: Mapping[str, Any], pieces: str, batch: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return rows that Hugging Face's class reads as Cloze does; see `hub.parity.probe`."""
        return batch  # `pieces`: the tokenizer's directory

    def token_fields(
        self, heads: Iterable[str], special: SpecialTokens, separators: int
    ) -> dict[str, Any]:
        """Return config values that name special tokens; `separators`: those between two texts.

        Raises DataError: Hugging Face's class reads such rows otherwise.
        """
        return {}

    def to_config(
        self, model: ModelConfig, heads: Mapping[str, Any], task: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Return the content of Hugging Face's config.json.

        Raises:
            DataError: Hugging Face has no class with these heads, or one that computes something
                else.
        """
        for head in heads:
            if head in self.refused:
                raise DataError(
                    f"{head} (a head of this {self.family} model) has no Hugging Face form: "
                    f"{self.refused[head]}"
                )
        objectives = prediction_objectives(heads)
        if objectives and "masked_lm" in heads and not set(self.objectives) & set(objectives):
            raise DataError(
                f"masked_lm (a head of this {self.family} model) was trained on "
                f"{', '.join(objectives)} and predicts each token at the position before it, which "
                f"no Hugging Face class of the family does; continue the training with mlm, or "
                f"fine-tune the model, and export the result"
            )
        architecture = self.architecture(heads)
        if "masked_lm" not in self.unexported and "masked_lm" in heads:
            architecture = architecture.replace("ForPreTraining", "ForMaskedLM")
        values = model.model_dump(mode="json")
        config = self.write({hf: values[cloze] for cloze, hf in self.fields.items()})
        config |= {
            **self._cloze_fields(model),
            **self.fixed,
            "model_type": self.model_type,
            "architectures": [architecture],
            "dtype": "float32",
        }
        if task is not None:
            config |= _labels(heads, task)
            config[TASK] = dict(task)
        return config

    @property
    def is_causal(self) -> bool:
        """Whether the format's class reads from left to right, by the masked_lm head."""
        return "clm" in self.objectives

    def _of_type(self, architecture: str, model_type: object) -> str:
        """Return the class of a `model_type` that does the same as `architecture`."""
        if model_type not in self.aliases:
            return architecture
        own = re.split("For|Model$", next(iter(self.architectures.values())), maxsplit=1)[0]
        return architecture.replace(own, self.aliases[str(model_type)], 1)

    def architecture(self, heads: Iterable[str], model_type: str = "") -> str:
        """Return the Hugging Face class that has all of these heads; the encoder's without one.

        Raises:
            DataError: no class has them.
        """
        heads = frozenset(heads)
        if not self.has_class(heads):
            raise DataError(
                f"heads ({', '.join(sorted(heads))}) of a {self.family} model have no Hugging Face "
                f"class; export another checkpoint"
            )
        return self._of_type(self.architectures[heads - {*self.unexported} or ENCODER], model_type)

    def has_class(self, heads: Iterable[str]) -> bool:
        """Return whether Hugging Face has a class with exactly these heads."""
        return (frozenset(heads) - {*self.unexported} or ENCODER) in self.architectures

    def head_of(self, config: Mapping[str, Any]) -> str | None:
        """Return the fine-tuning head of the class in a Hugging Face config; None without one."""
        names = {
            self._of_type(name, config.get("model_type")): task_head(heads)
            for heads, name in self.architectures.items()
        }
        return next(
            (names[name] for name in config.get("architectures") or () if name in names), None
        )

    def keys_for(self, heads: Iterable[str]) -> KeyMap:
        """Return the parameter names of a model with these heads."""
        rows = [row for head in heads for row in self.task_rows.get(head, ())]
        return KeyMap([*rows, *self.keys.rows], self.keys.parts) if rows else self.keys

    def _cloze_fields(self, model: ModelConfig) -> dict[str, Any]:
        """Return non-default values that transformers has no field for; import restores them."""
        names = set(type(model).model_fields) - set(self.fields) - {"family"}
        values = model.model_dump(mode="json", include=names, exclude_defaults=True)
        return {CLOZE_FIELDS: values} if values else {}

    def from_config(self, config: Mapping[str, Any], where: str) -> ModelConfig:
        """Return the model config for a Hugging Face config, read from `where`.

        Missing fields have Hugging Face's defaults, and so have those that are null. Whether
        matrices are tied is seen in the weights, see `from_state`.

        Raises:
            DataError: a value is not supported by this family.
        """
        config = without_nulls(config)
        for name, value in {**REQUIRED, **self.fixed}.items():
            if name != TIED and config.get(name, value) != value:
                raise DataError(
                    f"{where} has {name} {config[name]!r}, but Cloze's {self.family} has "
                    f"{value!r}; use another model"
                )
        hf_values = self.read({**self.defaults, **config})
        values = {cloze: hf_values[hf] for cloze, hf in self.fields.items() if hf in hf_values}
        values |= dict(config.get(CLOZE_FIELDS, {}))
        if not values.get("vocab_size"):
            raise DataError(f"{where} has no vocab_size; use a complete Hugging Face directory")
        try:
            return parse_model({"family": self.family, **values})
        except ValidationError as error:
            fault = error.errors()[0]
            field_name = str(fault["loc"][0]) if fault["loc"] else "a value"
            name = self.fields.get(field_name, field_name)
            message = str(fault["msg"]).removeprefix("Value error, ")
            raise DataError(
                f"{where}: {name} ({fault['input']!r}) does not fit: {message}"
            ) from error

    def to_state(
        self, state: Mapping[str, Tensor], heads: Iterable[str] = (), model: Any = None
    ) -> dict[str, Tensor]:
        """Return the weights under Hugging Face's names, without tied copies, as in transformers.

        Args:
            heads, model: as for `to_config`; `model` is needed where `to_theirs` reads it.

        Raises:
            DataError: a parameter is not in the table.
        """
        hf_state: dict[str, Tensor] = {}
        heads = tuple(heads)
        keys = self.keys_for(heads)
        for name, tensor in self.exported(state, heads).items():
            hf_name = keys.to_hf(name)
            if hf_name is None:
                raise DataError(
                    f"the parameter {name} has no Hugging Face name in the {self.family} table; "
                    f"export another checkpoint"
                )
            hf_state |= keys.split(hf_name, self.to_theirs(model, name, tensor))
        return hf_state

    def exported(self, state: Mapping[str, Tensor], heads: Iterable[str] = ()) -> dict[str, Tensor]:
        """Return the weights that have a Hugging Face form; embedding models have no pooler."""
        from cloze.model.layers.embeddings import merged

        modules = {name.split(".", 1)[0] for name in state}
        if modules & set(self.encoder_alone):
            modules = {"encoder"}
        modules -= {*self.unexported, *(("pooler",) if EMBEDDING in heads else ())}
        return {
            name: tensor
            for name, tensor in merged(state).items()
            if name.split(".", 1)[0] in modules
        }

    def from_state(
        self, state: Mapping[str, Tensor], where: str, head: str | None = None, model: Any = None
    ) -> dict[str, Tensor]:
        """Return Hugging Face's weights, read from `where`, under Cloze's names.

        Weights of heads that the family does not use keep their own names. `head`, see `head_of`;
        `model` is needed where `to_ours` reads it.

        Raises:
            DataError: a name is not in the table, or a tied copy differs from its original.
        """
        current = {self.current_name(name): name for name in state}
        prefix = f"{self.keys.to_hf(WORDS)}".split(".", 1)[0] + "."
        if not any(name.startswith(prefix) for name in current):  # the encoder was saved alone
            current = {prefix + name: own for name, own in current.items()}
        weights = self.keys.join({name: state[own] for name, own in current.items()})
        cloze_state: dict[str, Tensor] = {}
        keys = self.keys_for(() if head is None else (head,))
        for hf_name, tensor in weights.items():
            drop = self.drop_of(hf_name, model, head)
            if drop is not None and not drop.copy_of:
                drop.check(tensor, f"{where}: {hf_name}")
                cloze_state |= {hf_name: tensor.float()} if drop.named else {}
                continue
            if drop is not None and drop.repeats(tensor, weights):
                continue
            tie = drop.copy_of if drop else ""
            # Some models have a matrix of their own; without an original, a copy stands for it.
            name = keys.from_hf(hf_name if tie in weights else tie or hf_name)
            if name is None:
                own = current.get(hf_name, hf_name)
                fault = f"must be tied to {tie}" if tie else f"is not in the {self.family} table"
                raise DataError(f"{where} contains {own}, which {fault}; use another model")
            cloze_state[name] = self.to_ours(model, name, tensor.float())
        return cloze_state

    def drop_of(self, name: str, model: Any = None, head: str | None = None) -> Drop | None:
        """Return why a weight with this Hugging Face name is not taken; None if it is."""
        fitting = (drop for drop in (POSITION_IDS, *self.drops) if fnmatchcase(name, drop.names))
        return next((drop for drop in fitting if drop.when(model, head)), None)

    def current_name(self, name: str) -> str:
        """Return today's name of a parameter in a file, without what wrappers of torch add."""
        name = _WRAPPERS.sub("", name)
        for legacy_part, current_part in self.legacy.items():
            name = name.replace(legacy_part, current_part)
        lacks_base = self.keys.from_hf(name) is None and self.keys.from_hf(self.base + name)
        return self.base + name if lacks_base else name


def _labels(heads: Iterable[str], task: Mapping[str, Any]) -> dict[str, Any]:
    """Return config values with a head's labels; a single unnamed output is a regression."""
    if not set(heads) & set(LABELLED):
        return {}
    labels = [str(label) for label in task.get("labels") or ()]
    names = labels or ["LABEL_0"]
    problem = task.get("problem_type") if labels else "regression"
    return {
        **({"problem_type": problem} if problem else {}),
        "id2label": {str(number): label for number, label in enumerate(names)},
        "label2id": {label: number for number, label in enumerate(names)},
    }
