"""Configs and stages of the lab. No torch: the command line imports it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from cloze.core.config import InputPath, StageConfig
from cloze.core.errors import UsageError, did_you_mean
from cloze.core.humanize import format_count, format_metrics, format_number
from cloze.core.stages.stage import InputSpec, Stage, deferred
from cloze.model.tasks.files import NOTES, data_fingerprint, missing_split
from cloze.model.tasks.options import TaggingOptions
from cloze.model.tasks.table import TASKS, task_options
from cloze.model.use.configs import VerbConfig
from cloze.model.use.verb import Predictor, verb_stage

SPLITS = ("train", "dev")
_stage = partial(Stage, worker="cloze.model", on_gpu=True, comparison_metrics=("metrics",))
PRETRAINED = InputSpec(kinds=("pretrain",), explicit_kinds=("finetune", "merge"), required=True)


class ProbeConfig(StageConfig):
    """Options of probe.

    The training recipe is fixed, so that layers and checkpoints can be compared: Adam at 0.001 in
    batches of 128, at most 30 epochs (of 6,400 examples or more), stopped after 3 epochs without a
    lower loss on dev.
    """

    task: str = "conll2003"
    """Tagging task, such as conll2003 (entities), conll2003-pos, conll2003-chunk or ud-pos."""

    data: InputPath | None = None
    """Directory with the task's files, or its parent."""

    options: dict[str, Any] = Field(default_factory=dict)
    """Task options that differ from the registered ones, such as the columns and files of your own
    data."""

    target: Literal["words", "entities", "arcs"] = "words"
    """Classified units: the tag of each word, the type of each entity by its span, or the relation
    of each word to its head by both words (CoNLL-U files)."""

    hidden: int | None = Field(default=None, ge=1)
    """Width of additional probes with one hidden layer. Default: linear probes only."""

    limit: int = Field(default=20_000, ge=1)
    """Maximum words per split, in whole sentences drawn by the seed. Their states are in memory: 4
    bytes per word, layer and unit of width (base models: 0.8 GB per split)."""

    baselines: bool = True
    """Also score the most frequent label, and the same encoder with random weights."""

    seed: int = Field(default=1, ge=0, lt=1 << 63)
    """Seed of the sentences, the control task, the probes and the random encoder."""

    @field_validator("task")
    @classmethod
    def _tagging_task(cls, value: str) -> str:
        tagging = [name for name, spec in TASKS.loaded().items() if spec.kind == "tagging"]
        if value not in tagging:
            raise ValueError(f"no task with tags of words; {did_you_mean(value, tagging)}")
        return value

    @model_validator(mode="after")
    def _check_options(self) -> ProbeConfig:
        try:
            options = self.task_options
        except UsageError as error:
            raise ValueError(str(error)) from error
        if options.context == "document":
            raise ValueError("options.context (document) is not for probes; use sentence")
        if self.target == "entities" and options.scheme != "entities":
            raise ValueError(
                f"target (entities) needs tags such as B-PER, {self.task} has plain labels; use "
                f"target words"
            )
        return self

    @property
    def task_options(self) -> TaggingOptions:
        options = task_options(self.task, self.options)
        assert isinstance(options, TaggingOptions)
        return options

    def external_fingerprints(self) -> dict[str, str]:
        if self.data is None:
            return {}
        return {"data": data_fingerprint(self.data, self.task_options, SPLITS)}

    def missing(self) -> str:
        return missing_split(self.data, self.task_options, SPLITS) if self.data else ""


class LayersConfig(StageConfig):
    """Options of layers."""

    texts: InputPath
    """File with a text per line."""

    tokens: int = Field(default=4096, ge=2)
    """Number of tokens whose states are compared, special tokens included. CKA needs several times
    as many as the model is wide."""


def cut_notes(samples: Any, longest: int) -> list[str]:
    """Return a note if some of the texts were longer than `longest` tokens."""
    note = f"{samples.truncated:,} of {len(samples):,} texts are cut to {longest:,} tokens"
    return [note] if samples.truncated else []


def _layers_headline(summary: Mapping[str, Any]) -> str:
    figures = ", ".join(
        f"{name.replace('_', ' ')} {format_number(value)}"
        for name, value in summary["metrics"].items()
        if value is not None
    )
    return "; ".join([figures, *summary.get(NOTES, ())])


# Scores of probes by layer, with control tasks, scalar mixes and baselines. File: `metrics.json`.
PROBE = _stage(
    name="probe",
    version=1,
    config=ProbeConfig,
    run=deferred("cloze.labs.inside.probe:run"),
    inputs={"checkpoint": PRETRAINED},
    headline=_layers_headline,
)

# How far each layer moves its input (ALBERT, figure 1), and how similar layers are: linear CKA.
# File: `metrics.json`.
LAYERS = _stage(
    name="layers",
    version=1,
    config=LayersConfig,
    run=deferred("cloze.labs.inside.probe:compare"),
    inputs={
        "checkpoint": PRETRAINED,
        "other": InputSpec(kinds=("pretrain", "finetune", "merge"), explicit_only=True),
    },
    headline=_layers_headline,
)


class HeadsConfig(StageConfig):
    """Options of the stage heads."""

    texts: InputPath | None = None
    """File with a text per line, instead of a dataset's rows."""

    treebank: InputPath | None = None
    """Sentences with dependencies, a CoNLL-U file: how well each head predicts each relation.
    Without texts and a dataset, its sentences are the texts."""

    rows: int = Field(default=1000, ge=1)
    """Maximum number of rows or texts, from the first. Rows are the held-out ones, if there are
    any."""

    max_length: int | None = Field(default=None, ge=3)
    """Maximum tokens per text, special tokens included; longer texts are cut. Default: the
    model's maximum."""


def _heads_headline(summary: Mapping[str, Any]) -> str:
    metrics = summary["metrics"]
    largest = (
        f"{metrics['positional_heads']} positional of {summary['heads']} heads; at most "
        f"{metrics['largest_previous']:.0%} of a head to the previous, "
        f"{metrics['largest_next']:.0%} to the next token"
    )
    return "; ".join([largest, *summary.get(NOTES, ())])


# Attention by head (Clark et al. 2019; Voita et al. 2019). File: `metrics.json`, all numbers by
# layer and head.
HEADS = _stage(
    name="heads",
    version=2,  # 2: words of a treebank in vocabularies without [CLS]
    config=HeadsConfig,
    run=deferred("cloze.labs.inside.heads:run"),
    inputs={
        "checkpoint": InputSpec(
            kinds=("pretrain",), explicit_kinds=("finetune", "merge", "prune"), required=True
        ),
        "dataset": InputSpec(kinds=("dataset",)),
    },
    headline=_heads_headline,
)


class PruneConfig(StageConfig):
    """Options of prune. Layers are dropped first, then heads, then single weights."""

    data: InputPath | None = None
    """Directory with the task's files, or its parent: heads are chosen on its train split, and
    scores are those of its dev split. Default: no scores."""

    keep_heads: float | None = Field(default=None, gt=0, le=1)
    """Share of the attention heads to keep, at least one per layer; needs --data."""

    heads_by: Literal["importance", "gates"] = "importance"
    """Choice of the heads: importance, the loss's gradient by a gate on each head (Michel et al.
    2019), or gates that learn to close (Voita et al. 2019)."""

    keep_layers: int | None = Field(default=None, ge=1)
    """Number of layers to keep."""

    layers_from: Literal["bottom", "top", "alternate"] = "bottom"
    """Layers to keep: the bottom ones, the top ones, or alternate ones, from the first."""

    sparsity: float | None = Field(default=None, gt=0, lt=1)
    """Share of the weights in the layers' matrices to set to zero, those of smallest magnitude."""

    examples: int = Field(default=2048, ge=1)
    """Number of training examples by which heads are chosen, a random sample."""

    epochs: int = Field(default=3, ge=1)
    """With gates: passes over these examples."""

    seed: int = Field(default=1, ge=0, lt=1 << 63)
    """Seed of the sample and of the gates."""

    @model_validator(mode="after")
    def _check_something(self) -> PruneConfig:
        if self.keep_heads is None and self.keep_layers is None and self.sparsity is None:
            raise ValueError(
                "keep_heads, keep_layers and sparsity (none is given) leave nothing to prune; give "
                "one of them"
            )
        if self.keep_heads is not None and self.data is None:
            raise ValueError(
                f"keep_heads ({self.keep_heads}) needs data (found none): heads are chosen on a "
                f"task's examples; name its directory"
            )
        return self


def _prune_headline(summary: Mapping[str, Any]) -> str:
    size = f"{format_count(summary['parameters'])} of {format_count(summary['parameters_before'])}"
    zeros = f", {summary['zeros']:.0%} zeros in layers" if summary["zeros"] else ""
    scores = f", {format_metrics(summary['metrics'])}" if summary["metrics"] else ""
    return f"{size} parameters{zeros}{scores}"


# Files: `checkpoint/`; `metrics.json`: scores before and after; with --keep-heads the importance of
# each head, and the score by number of heads.
PRUNE = _stage(
    name="prune",
    version=2,  # 2: sparsity leaves T5's output matrix and XLNet's segments
    config=PruneConfig,
    run=deferred("cloze.labs.inside.prune:run"),
    inputs={
        "checkpoint": InputSpec(
            kinds=("finetune",),
            explicit_kinds=("pretrain", "merge", "prune"),
            required=True,
            inherited_fields=("data",),
        ),
        "rewind": InputSpec(kinds=("pretrain",), explicit_kinds=("merge",), explicit_only=True),
    },
    outputs=("checkpoint",),
    headline=_prune_headline,
)


class NeighboursConfig(VerbConfig):
    """Options of neighbours. A request has `word` and `in`, a sentence with it."""

    corpus: InputPath | None = None
    """Corpus whose sentences are searched. Not needed for static vectors."""

    static: InputPath | None = None
    """Static vectors (`cloze static-vectors`), whose nearest words are shown next to the
    occurrences."""

    layer: int = -1
    """Layer of the states, from 0 (the embeddings); negative: from the end. Middle layers often
    separate meanings best."""

    any_word: bool = False
    """Compare all words of the sentences, not only occurrences of the word itself."""

    sentences: int = Field(default=2000, ge=1)
    """Maximum number of sentences that are read; the corpus is in random order."""

    top_k: int = Field(default=5, ge=1)
    """Number of neighbours, nearest first."""


NEIGHBOURS = Predictor(NeighboursConfig, "cloze.labs.inside.neighbours:Neighbours", "word")
NEIGHBOURS_STAGE = verb_stage("neighbours", NEIGHBOURS)


class AttentionConfig(VerbConfig):
    """Options of attention. A request has `text`, and `pair` for a second text."""


ATTENTION_STAGE = verb_stage(
    "attention", Predictor(AttentionConfig, "cloze.labs.inside.attention:ShowAttention")
)
