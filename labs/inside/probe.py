"""What each layer of a frozen encoder makes easy to read, and how the layers differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cloze.core.errors import DataError, UsageError
from cloze.core.figures import check_figures, goodness
from cloze.core.ragged import I64
from cloze.core.stages.stage import BuildContext, StageResult
from cloze.labs.inside.probes import Probes, Spans, fit, sampled, spans_of, standardize, word_states
from cloze.labs.inside.stages import SPLITS, LayersConfig, ProbeConfig, cut_notes
from cloze.model import checkpoint
from cloze.model.data.batch import move
from cloze.model.families.models import load_backbone, new_backbone
from cloze.model.families.pretraining import encode as encode_batch
from cloze.model.layers.encoder import layer_count, layer_states
from cloze.model.tasks.encode import (
    CPU_POSITIONS,
    GPU_POSITIONS,
    TextSamples,
    encode,
    evaluation_batches,
)
from cloze.model.tasks.files import METRICS_FILE, NOTES, write_json
from cloze.model.tasks.formats.columns import TaggedWords
from cloze.model.tasks.kinds.tagging import Tagging, Tags
from cloze.model.tasks.notes import repeats
from cloze.model.tasks.table import load_task
from cloze.model.tasks.task import Split, check_labelled, task_source
from cloze.model.train.distributed import init_distributed
from cloze.model.use.likelihood import read_texts
from cloze.pipeline import tokenizer

LENGTH = 128  # maximum tokens of a text


def compare(config: LayersConfig, build: BuildContext) -> StageResult:
    """Compare the layers of a checkpoint with each other, and with those of another one.

    Returns:
        summary: `layers`, by layer from 1: `distance` and `angle` (degrees) of its output from its
            input, means over tokens, and linear CKA with its input, the last layer, and the other
            checkpoint's same layer; `cka` and `cka_other`, of all pairs of layers from 0;
            `metrics`: means over layers.

    Raises:
        UsageError: the tokenizers differ, or a model has a decoder.
        DataError: a checkpoint or the file is missing or damaged.
    """
    device = init_distributed(build.execution).device
    loaded = {
        role: checkpoint.load_input(build, build.inputs[role])
        for role in ("checkpoint", "other")
        if role in build.inputs
    }
    pieces = [tokenizer.load(own.tokenizer) for own in loaded.values()]
    if pieces[0].fingerprint != pieces[-1].fingerprint:
        raise UsageError(
            f"{build.inputs['other']} has another tokenizer than {build.inputs['checkpoint']}; "
            f"compare checkpoints with the same one"
        )
    texts = [line.text for line in read_texts(config.texts)]
    if not texts:
        raise DataError(f"{config.texts} is empty; write a text per line")
    longest = min(own.model.max_position_embeddings for own in loaded.values())
    longest = min(LENGTH, longest)
    samples = encode(texts, None, pieces[0], longest)
    needed = int(np.searchsorted(samples.lengths.cumsum(), config.tokens)) + 1
    states, *others = [
        token_states(load_backbone(own.model, own.state).encoder, samples, device, needed)
        for own in loaded.values()
    ]
    states, others = states[: config.tokens], [other[: config.tokens] for other in others]
    distances, angles = changes(states)
    similarity = cka(states, states)
    summary: dict[str, Any] = {"cka": similarity.tolist()}
    columns = {
        "distance": distances,
        "angle": angles,
        "cka_input": similarity.diagonal(1),
        "cka_last": similarity[1:, -1],
    }
    for other in others:
        between = cka(states, other)
        summary["cka_other"] = between.tolist()
        if between.shape[0] == between.shape[1]:
            columns["cka_other"] = between.diagonal()[1:]
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    summary |= {
        "metrics": {name: float(column.mean()) for name, column in columns.items()},
        "layers": [
            {"layer": layer, **dict(zip(columns, row, strict=True))}
            for layer, row in enumerate(rows, 1)
        ],
        "step": loaded["checkpoint"].step,
        NOTES: cut_notes(samples, longest),
    }
    write_json(build.file(METRICS_FILE), summary)
    return StageResult(rows=min(needed, len(texts)), tokens=len(states), summary=summary)


def token_states(
    encoder: nn.Module, samples: TextSamples, device: torch.device, count: int | None = None
) -> Tensor:
    """Return the states of all tokens in all layers, fp32 [tokens, layers + 1, D], on the CPU.

    Args:
        count: number of samples to read, the first ones. Default: all.

    Raises:
        UsageError: the model has a decoder.
    """
    encoder = encoder.to(device).eval()
    lengths = samples.lengths[:count]
    begins = lengths.cumsum() - lengths
    layers = range(1 + layer_count(encoder))
    states = torch.zeros(0)
    for indices in evaluation_batches(
        lengths, CPU_POSITIONS if device.type == "cpu" else GPU_POSITIONS
    ):
        batch: Any = move(samples.batch(indices, "rows"), device)
        compare = partial(encode_batch, encoder, batch["input_ids"], batch)
        with torch.inference_mode():
            found = layer_states(encoder, layers, compare)
        stacked = torch.stack(found, dim=2).float().cpu()
        if not len(states):
            states = stacked.new_zeros(int(lengths.sum()), *stacked.shape[2:])
        for index, row in zip(indices.tolist(), stacked, strict=True):
            states[begins[index] : begins[index] + lengths[index]] = row[: lengths[index]]
    return states


def changes(states: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean L2 distance of each layer's output from its input, and the mean angle.

    Args:
        states: fp32 [tokens, layers + 1, D].

    Returns:
        fp64 [layers] and, in degrees, fp64 [layers].
    """
    before, after = states[:, :-1].double(), states[:, 1:].double()
    cosines = torch.cosine_similarity(before, after, dim=-1).clamp(-1, 1)
    angles = torch.rad2deg(torch.arccos(cosines)).mean(dim=0)
    return (after - before).norm(dim=-1).mean(dim=0), angles


def cka(states: Tensor, others: Tensor) -> Tensor:
    """Return the linear centered kernel alignment of all pairs of layers, fp64 [layers, others].

    1: equal up to rotation, shift and scale; near 0: unrelated (Kornblith et al., "Similarity of
    Neural Network Representations Revisited", 2019, section 3).

    Args:
        states: fp32 [tokens, layers, D].
        others: fp32 [tokens, others, E].
    """
    own, other = ((side - side.mean(dim=0)).double().unbind(dim=1) for side in (states, others))
    products = torch.tensor([[float((b.T @ a).norm() ** 2) for b in other] for a in own])
    norms = [torch.tensor([float((x.T @ x).norm()) for x in side]) for side in (own, other)]
    return products.double() / (norms[0][:, None] * norms[1]).clamp(min=1e-30)


def run(config: ProbeConfig, build: BuildContext) -> StageResult:
    """Probe all layers of the checkpoint.

    Returns:
        summary: `metric`; `metrics`, those of the best layer, its number, figures of the mix and
            baselines; `layers`, scores by layer; `mix`, see `_Trainer.mix`; `step` of the
            checkpoint.

    Raises:
        UsageError: the data is not given, or the model has a decoder.
        DataError: checkpoint or data is missing or damaged.
    """
    device = init_distributed(build.execution).device
    task = load_task(config.task, config.options)
    assert isinstance(task, Tagging)
    source = task_source(task, config.data, None)
    loaded = checkpoint.load_input(build, build.inputs["checkpoint"])
    pieces = tokenizer.load(loaded.tokenizer)
    max_length = min(task.max_length, loaded.model.max_position_embeddings)
    examples, spans = {}, {}
    for number, split in enumerate(SPLITS):
        read = task.read(source, split, None)
        check_labelled(read, split)
        examples[split] = sampled(read, config.limit, config.seed + number)
        spans[split] = spans_of(examples[split], config.target)
    samples = {name: task.encode(own, pieces, max_length) for name, own in examples.items()}

    def features(encoder: nn.Module) -> list[Tensor]:
        found = [
            spans[name].features(word_states(token_states(encoder, own, device), own))
            for name, own in samples.items()
        ]
        largest = {
            f"feature of {split}": float(own.abs().max())
            for split, own in zip(samples, found, strict=True)
        }
        check_figures("probe", largest)
        standardize(*found)
        return found

    encoder = load_backbone(loaded.model, loaded.state).encoder
    trainer = _Trainer(config, task, examples["dev"], spans, device)
    layers, mix = trainer.trained(features(encoder))
    metric = trainer.metric
    best = max(layers, key=lambda layer: goodness(layer[metric], metric))
    metrics = {metric: best[metric], **best, "best_layer": best["layer"]}
    del metrics["layer"]
    metrics |= {name: mix[name] for name in ("center_of_gravity", "expected_layer")}
    if config.baselines:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            random = new_backbone(loaded.model).encoder
        for layer, score in zip(layers, trainer.linear(features(random)), strict=True):
            layer["from_scratch"] = score
        metrics["from_scratch"] = max(layer["from_scratch"] for layer in layers)
        metrics["majority"] = trainer.constant()
    summary = {
        "task": task.name,
        "target": config.target,
        "metric": metric,
        "metrics": metrics,
        "layers": layers,
        "mix": mix,
        "examples": {name: len(own.labels) for name, own in spans.items()},
        "step": loaded.step,
        NOTES: repeats(*(Split(examples=examples[name], samples=samples[name]) for name in SPLITS)),
    }
    write_json(build.file(METRICS_FILE), summary)
    tokens = sum(int(own.lengths.sum()) for own in samples.values())
    return StageResult(rows=len(spans["train"].labels), tokens=tokens, summary=summary)


class _Trainer:
    """Trains and scores probes of the layers of encoders, all on the same examples.

    Attributes:
        metric: main metric of `score`.
    """

    def __init__(
        self,
        config: ProbeConfig,
        task: Tagging,
        dev: TaggedWords,
        spans: Mapping[str, Spans],
        device: torch.device,
    ) -> None:
        self._config, self._task, self._dev, self._device = config, task, dev, device
        self._names = sorted(set(spans["train"].labels))
        self._labels = [spans[name].numbers(self._names) for name in SPLITS]
        self._control = [
            spans[name].control_labels(self._labels[0], config.seed) for name in SPLITS
        ]
        self.metric = task.metrics[0] if config.target == "words" else "accuracy"

    def trained(self, features: Sequence[Tensor]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Return each layer's scores, and what scalar mixes of layers show.

        A layer's `selectivity` is its accuracy less that in the control task. The mixes are those
        of Tenney et al. ("BERT Rediscovers the Classical NLP Pipeline", 2019): `weights` of all
        layers, and `center_of_gravity`, their mean layer; `scores` of the mixes of layers 0 to l,
        and `expected_layer`, the mean layer of their gains (None: there is none).
        """
        count = features[0].shape[1]
        single, mixed = np.eye(count, dtype=bool), np.tri(count, dtype=bool)
        found, weights = self._fit(features, np.concatenate([single, single, mixed]), count)
        layers = self._by_layer(found, count)
        if self._config.hidden is not None:
            both = np.concatenate([single, single])
            hidden, _ = self._fit(features, both, count, self._config.hidden)
            for layer, own in zip(layers, self._by_layer(hidden, count), strict=True):
                layer["hidden"], layer["hidden_selectivity"] = own[self.metric], own["selectivity"]
        scores = [self.score(own)[self.metric] for own in found[2 * count :]]
        gains, numbers = np.diff(scores), np.arange(count)
        total = float(gains.sum())
        return layers, {
            "weights": weights[-1].tolist(),
            "center_of_gravity": float(weights[-1] @ numbers),
            "scores": scores,
            "expected_layer": float(gains @ numbers[1:]) / total if total > 0 else None,
        }

    def linear(self, features: Sequence[Tensor]) -> list[float]:
        """Return each layer's main score by linear probes."""
        found, _ = self._fit(features, np.eye(features[0].shape[1], dtype=bool), 0)
        return [self.score(own)[self.metric] for own in found]

    def constant(self) -> float:
        """Return the main score of the most frequent label."""
        label = np.bincount(self._labels[0]).argmax()
        return self.score(np.full_like(self._labels[1], label))[self.metric]

    def score(self, predictions: I64) -> dict[str, float]:
        """Return the metrics of predicted label numbers, int64 [n]."""
        accuracy = {"accuracy": float((predictions == self._labels[1]).mean())}
        if self._config.target != "words":
            return accuracy
        labels = [self._names[number] for number in predictions]
        ends = np.cumsum([0, *map(len, self._dev.words)])
        tags = [labels[begin:end] for begin, end in pairwise(ends.tolist())]
        return accuracy | self._task.score(self._dev, Tags(tags=tags, scores=[]))

    def _by_layer(self, predictions: I64, count: int) -> list[dict[str, Any]]:
        """Return scores by layer from predictions of the real labels, then of the control's."""
        layers = []
        for layer in range(count):
            scores = self.score(predictions[layer])
            control = float((predictions[count + layer] == self._control[1]).mean())
            selectivity = scores["accuracy"] - control
            own = {self.metric: scores[self.metric], **scores}
            layers.append({"layer": layer, **own, "control": control, "selectivity": selectivity})
        return layers

    def _fit(
        self,
        features: Sequence[Tensor],
        layers: npt.NDArray[np.bool_],
        count: int,
        hidden: int | None = None,
    ) -> tuple[I64, npt.NDArray[np.float32]]:
        """Train probes; return their predictions on dev, [G, n], and their weights of the layers.

        Args:
            layers: bool [G, layers], layers of each probe; probes `count` to 2 `count` have the
                labels of the control task.
        """
        is_control = np.zeros((len(layers), 1), bool)
        is_control[count : 2 * count] = True
        pairs = zip(self._labels, self._control, strict=True)
        labels = [np.where(is_control, control, real) for real, control in pairs]
        size, seed = features[0].shape[2], self._config.seed
        probes = Probes(layers, size, len(self._names), hidden, seed).to(self._device)
        predictions = fit(probes, features, labels, seed)
        return predictions, probes.weights.detach().cpu().numpy()
