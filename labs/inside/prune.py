"""Pruning: a checkpoint without some of its layers, attention heads or weights.

Weights are named as in a checkpoint. Layers and heads are counted from 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from cloze.core.config import parse_config
from cloze.core.errors import UsageError
from cloze.core.stages.stage import CHECKPOINT, BuildContext, StageResult
from cloze.labs.inside import head_gates
from cloze.labs.inside.head_gates import HeadGates, heads_to_keep
from cloze.labs.inside.stages import PruneConfig
from cloze.model import checkpoint
from cloze.model.checkpoint import LoadedCheckpoint
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import new_backbone
from cloze.model.families.pruned import Config, Weights, is_layer_matrix, over_heads
from cloze.model.tasks.files import METRICS_FILE, check_apart, write_json
from cloze.model.tasks.predict import FinetunedModel
from cloze.model.tasks.task import Metrics, Split, task_source
from cloze.model.train.distributed import World, init_distributed

LAYER = re.compile(r"encoder\.layers\.(\d+)\.(.*)")


def keep_layers(
    config: Config, state: Mapping[str, Tensor], layers: Sequence[int]
) -> tuple[Config, Weights]:
    """Return config and weights with these layers only.

    Args:
        layers: layers to keep, ascending.

    Raises:
        UsageError: the layers share weights, differ in structure, or belong to a model with a
            decoder or generator.
    """
    if config.is_encoder_decoder:
        raise UsageError(
            f"layers of {config.family} models have a decoder's above them and cannot be dropped; "
            f"use another model"
        )
    if any(name.startswith("generator.") for name in state):
        raise UsageError(
            f"layers of a pretrained {config.family} model cannot be dropped, as its generator has "
            f"as many; fine-tune it first"
        )
    changes = {
        "num_hidden_layers": len(layers),
        "heads_by_layer": tuple(map(config.heads_of, layers)) if config.heads_by_layer else (),
    }
    smaller = parse_config(type(config), {**config.model_dump(), **changes}, "model")
    kept, weights = {}, [dict[str, Tensor]() for _ in range(config.num_hidden_layers)]
    for name, tensor in state.items():
        match = LAYER.fullmatch(name)
        if match is None:
            kept[name] = tensor
        else:
            weights[int(match[1])][match[2]] = tensor
    if not any(weights):
        raise UsageError(
            f"layers of this {config.family} model share weights and cannot be dropped; use "
            f"another model"
        )
    with torch.device("meta"):
        encoder, whole = (new_backbone(model).encoder for model in (smaller, config))

    def structure(model: ModelConfig, encoder: nn.Module, layer: int) -> list[Any]:
        module = encoder.get_submodule(f"layers.{layer}")
        residual = getattr(module, "residual", None)  # LSTMs' layers have it, but not the first
        return [model.window_of(layer), residual, sorted(module.state_dict())]

    for position, layer in enumerate(layers):
        if structure(smaller, encoder, position) != structure(config, whole, layer):
            raise UsageError(
                f"layer {layer} of this {config.family} model cannot become layer {position}, "
                f"whose structure differs; keep other layers"
            )
        for name, tensor in weights[layer].items():
            kept[f"encoder.layers.{position}.{name}"] = tensor
    return smaller, kept


def keep_heads(
    config: Config, state: Mapping[str, Tensor], heads: Sequence[Sequence[int]]
) -> tuple[Config, Weights]:
    """Return config and weights with these attention heads only.

    Args:
        heads: heads to keep in each layer, ascending, at least one.

    Raises:
        UsageError: the family's layers cannot differ in their heads.
    """
    if not config.supports_pruned_heads:
        raise UsageError(
            f"attention heads of {config.family} models cannot be removed; use --keep-layers or "
            f"--sparsity, or another model"
        )
    counts = [len(kept) for kept in heads]
    whole = all(count == config.num_attention_heads for count in counts)
    smaller = config.model_copy(update={"heads_by_layer": () if whole else tuple(counts)})
    rows = [
        torch.cat([torch.arange(config.head_size) + head * config.head_size for head in kept])
        for kept in heads
    ]

    def selected(layer: int, blocks: Tensor, dimension: int) -> Tensor:
        return blocks.index_select(dimension, rows[layer].to(blocks.device))

    return smaller, over_heads(state, selected)


CURVE = 10  # points of the curve of score by heads


class Scorer:
    """A task's train and dev split, and its models' scores on the latter.

    Attributes:
        loaded: the unpruned checkpoint.
        whole: its model.
        before: metrics of `whole`.
    """

    def __init__(self, loaded: LoadedCheckpoint, data: str | None, world: World) -> None:
        self._world, self.loaded = world, loaded
        self.whole = self.model(loaded)
        self._source = task_source(self.whole.task, data, None)
        self._dev = self.split("dev")
        self.before = self.score(self.whole)

    def split(self, name: str) -> Split:
        """Return a split of the task, encoded.

        Raises:
            DataError: train would be the file that dev is.
        """
        for path, options in self.whole.task.sources(self._source) if name == "train" else ():
            check_apart(path, options, ("train", "dev"))
        return self.whole.encode(self.whole.task.read(self._source, name, None))

    def model(self, loaded: LoadedCheckpoint) -> FinetunedModel:
        """Return the task's model with a checkpoint's weights."""
        return FinetunedModel(loaded, world=self._world)

    def score(self, model: FinetunedModel) -> Metrics:
        """Return the task's metrics on the dev split."""
        return model.task.score(self._dev.examples, model.predict(self._dev))


def run(config: PruneConfig, build: BuildContext) -> StageResult:
    """Write the smaller checkpoint and its scores.

    Returns:
        summary: `checkpoint`; `parameters` and `parameters_before`; `layers`, `heads` by layer;
            `zeros`, the share in the layers' matrices; `metrics` and `metrics_before`.

    Raises:
        UsageError: config, checkpoint and data do not fit.
        DataError: checkpoint or data is missing or damaged.
    """
    world = init_distributed(build.execution)
    before = loaded = checkpoint.load_input(build, build.inputs["checkpoint"])
    scorer = None if config.data is None else Scorer(loaded, config.data, world)
    content: dict[str, Any] = {}
    if config.keep_layers is not None:
        layers = layers_to_keep(
            loaded.model.num_hidden_layers, config.keep_layers, config.layers_from
        )
        model, state = keep_layers(loaded.model, loaded.state, layers)
        loaded, content["layers_kept"] = replace(loaded, model=model, state=state), layers
    if config.keep_heads is not None:
        assert scorer is not None
        loaded, content["choice"] = _without_heads(config, loaded, scorer, build)
    if config.sparsity is not None:
        loaded = replace(loaded, state=sparse(loaded.state, config.sparsity))
    metrics = {} if scorer is None else scorer.score(scorer.model(loaded))
    if "rewind" in build.inputs:
        loaded = rewound(loaded, checkpoint.load_input(build, build.inputs["rewind"]))
    checkpoint.save_weights(
        build.file(CHECKPOINT), state=loaded.state, **checkpoint.metadata_of(loaded)
    )
    checkpoint.finalize(build.file(CHECKPOINT))
    matrices = [tensor for name, tensor in loaded.state.items() if is_layer_matrix(name, tensor)]
    zeros = sum(int((tensor == 0).sum()) for tensor in matrices)
    size = sum(tensor.numel() for tensor in matrices)
    summary = {
        "checkpoint": CHECKPOINT,
        "parameters": sum(tensor.numel() for tensor in loaded.state.values()),
        "parameters_before": sum(tensor.numel() for tensor in before.state.values()),
        "layers": loaded.model.num_hidden_layers,
        "heads": [loaded.model.heads_of(layer) for layer in range(loaded.model.num_hidden_layers)],
        "zeros": round(zeros / max(1, size), 6),
        "metrics": metrics,
        "metrics_before": {} if scorer is None else scorer.before,
        **({"curve": content["choice"].pop("curve")} if "choice" in content else {}),
    }
    write_json(build.file(METRICS_FILE), {**content, **summary})
    return StageResult(summary=summary)


def layers_to_keep(layers: int, count: int, where: str) -> list[int]:
    """Return the layers to keep, ascending.

    Raises:
        UsageError: there are fewer layers.
    """
    if count > layers:
        raise UsageError(f"keep_layers ({count}) exceeds the model's {layers} layers; use fewer")
    starts = {"bottom": range(count), "top": range(layers - count, layers)}
    return list(starts.get(where, (number * layers // count for number in range(count))))


def _without_heads(
    config: PruneConfig, loaded: LoadedCheckpoint, scorer: Scorer, build: BuildContext
) -> tuple[LoadedCheckpoint, dict[str, Any]]:
    """Remove heads; return what metrics.json says about them."""
    keep_heads(loaded.model, {}, [[0]] * loaded.model.num_hidden_layers)  # refused early
    is_whole = loaded is scorer.loaded
    model = scorer.whole if is_whole else scorer.model(loaded)
    train, device, objective = scorer.split("train"), model.device, model.objective
    build.report.progress(0, CURVE + 2, "scores", {"step": f"heads by {config.heads_by}"})
    if config.heads_by == "importance":
        scores = head_gates.importance(
            objective, train.samples, config.examples, config.seed, device
        )
    else:
        scores = head_gates.learned_gates(
            objective,
            train.samples,
            share=float(config.keep_heads or 1),
            count=config.examples,
            epochs=config.epochs,
            seed=config.seed,
            device=device,
        )
    total = sum(len(layer) for layer in scores)
    curve = []
    with HeadGates(objective.model).installed() as gates:
        counts = {max(len(scores), round(total * part / CURVE)) for part in range(CURVE + 1)}
        for number, count in enumerate(sorted(counts, reverse=True)):
            kept = heads_to_keep(scores, count)
            gates.values = [
                torch.zeros(heads, device=device).index_fill(
                    0, torch.tensor(own, device=device), 1.0
                )
                for heads, own in zip(gates.heads, kept, strict=True)
            ]
            metrics = scorer.before if is_whole and count == total else scorer.score(model)
            curve.append({"heads": count, **metrics})
            build.report.progress(number + 1, CURVE + 2, "scores", {"heads": count})
    kept = heads_to_keep(scores, round(total * float(config.keep_heads or 1)))
    smaller, state = keep_heads(loaded.model, loaded.state, kept)
    report = {"kept": kept, "scores": [layer.tolist() for layer in scores], "curve": curve}
    return replace(loaded, model=smaller, state=state), report


def sparse(state: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    """Return the weights with zeros for this share of the layers' matrices.

    The smallest magnitudes over all matrices together are zeroed. Embeddings, biases, norms and
    heads stay.
    """
    matrices = {name: tensor for name, tensor in state.items() if is_layer_matrix(name, tensor)}
    magnitudes = torch.cat([tensor.abs().flatten() for tensor in matrices.values()])
    count = round(share * len(magnitudes))
    threshold = magnitudes.kthvalue(count).values if count else torch.tensor(-1.0)
    return {
        name: tensor * (tensor.abs() > threshold) if name in matrices else tensor
        for name, tensor in state.items()
    }


def rewound(pruned: LoadedCheckpoint, earlier: LoadedCheckpoint) -> LoadedCheckpoint:
    """Return the earlier checkpoint with the zeros of the pruned one (Frankle et al. 2020).

    Raises:
        UsageError: the two have other shapes.
    """
    state = dict(earlier.state)
    for name, tensor in pruned.state.items():
        if not is_layer_matrix(name, tensor):
            continue
        if name not in state or state[name].shape != tensor.shape:
            raise UsageError(
                f"rewind ({earlier.path}) has other weights than the pruned checkpoint ({name}); "
                f"name a checkpoint of the same training, without --keep-heads and --keep-layers"
            )
        state[name] = state[name] * (tensor != 0)
    return replace(earlier, state=state)
