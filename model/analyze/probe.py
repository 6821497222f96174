"""Probes of a frozen checkpoint: what each layer makes easy to read (see `probe_stage`)."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cloze.core import storage
from cloze.core.errors import UsageError
from cloze.core.stages.stage import BuildContext, StageResult
from cloze.model import checkpoint
from cloze.model.analyze.layer_states import FrozenLayers
from cloze.model.analyze.probe_spans import (
    Spans,
    control_labels,
    sampled,
    spans_of,
    write_features,
)
from cloze.model.analyze.probe_stage import SPLITS, ProbeConfig
from cloze.model.analyze.probe_training import Features, Probes, fit
from cloze.model.families.models import load_backbone, new_backbone
from cloze.model.tasks.files import METRICS, write_json
from cloze.model.tasks.formats.columns import TaggedWords
from cloze.model.tasks.kinds.tagging import Tagging, Tags
from cloze.model.tasks.table import load_task
from cloze.model.tasks.task import Ints, check_labelled, task_source
from cloze.model.train.distributed import init_distributed
from cloze.pipeline import tokenizer


def run(config: ProbeConfig, build: BuildContext) -> StageResult:
    """Probe all layers of the checkpoint.

    Returns:
        summary: `metric`; `metrics`, those of the best layer, with its number, `selectivity`,
            `center_of_gravity`, `expected_layer` and baselines; `layers`, the scores of each layer;
            `mix`, weights and scores of the scalar mixes; `step` of the checkpoint.

    Raises:
        UsageError: the data is not given, or max_length exceeds the model's.
        DataError: checkpoint or data is missing or damaged.
    """
    world = init_distributed(build.execution)
    task = load_task(config.task, config.options)
    assert isinstance(task, Tagging)
    source = task_source(task, config.data, None)
    loaded = checkpoint.load_input(build, build.inputs["checkpoint"])
    pieces = tokenizer.load(loaded.tokenizer)
    longest = loaded.model.max_position_embeddings
    max_length = config.max_length or min(task.max_length, longest)
    if max_length > longest:
        raise UsageError(
            f"max_length ({max_length}) is more than {build.inputs['checkpoint']} reads "
            f"({longest}); use {longest} or less"
        )
    examples, spans = {}, {}
    for number, split in enumerate(SPLITS):
        read = task.read(source, split, None)
        check_labelled(read, split)
        examples[split] = sampled(read, config.limit, config.seed + number)
        spans[split] = spans_of(examples[split], config.target)
    samples = {name: task.encode(own, pieces, max_length) for name, own in examples.items()}

    def features(encoder: torch.nn.Module) -> list[Features]:
        frozen = FrozenLayers(encoder, world.device, config.precision)
        local = storage.filesystem(build.path)[1] if storage.is_local(build.path) else None
        arrays = []
        for name in SPLITS:
            file = tempfile.TemporaryFile(dir=local)  # noqa: SIM115, closed with its map
            arrays.append(
                write_features(frozen, samples[name], spans[name], len(examples[name]), file)
            )
        return [Features(values, arrays[0], world.device) for values in arrays]

    backbone = load_backbone(loaded.model, loaded.state)
    probes = _Probes(config, task, examples["dev"], spans, build)
    layers, mix = probes.trained(features(backbone.encoder))
    metric = next(iter(layers[0]))
    best = max(range(len(layers)), key=lambda layer: layers[layer][metric])
    metrics = {
        **{name: layers[best][name] for name in layers[best] if name != "hidden"},
        "best_layer": best,
        "center_of_gravity": mix["center_of_gravity"],
        "expected_layer": mix["expected_layer"],
    }
    if config.baselines:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            random = new_backbone(loaded.model).encoder
        for layer, score in zip(layers, probes.linear(features(random)), strict=True):
            layer["from_scratch"] = score
        metrics["from_scratch"] = max(layer["from_scratch"] for layer in layers)
        metrics["majority"] = probes.constant()
    content = {
        "task": task.name,
        "target": config.target,
        "metric": metric,
        "metrics": metrics,
        "layers": layers,
        "mix": mix,
        "labels": len(probes.names),
        "examples": {name: len(own) for name, own in spans.items()},
        "step": loaded.step,
    }
    write_json(build.file(METRICS), content)
    tokens = sum(int(own.lengths.sum()) for own in samples.values())
    parameters = sum(weight.numel() for weight in backbone.encoder.parameters())
    summary = {**content, "parameters": parameters, "device": world.device.type}
    return StageResult(rows=len(spans["train"]), tokens=tokens, summary=summary)


class _Probes:
    """Probes of the layers of an encoder, all trained on the same examples."""

    def __init__(
        self,
        config: ProbeConfig,
        task: Tagging,
        dev: TaggedWords,
        spans: Mapping[str, Spans],
        build: BuildContext,
    ) -> None:
        self._config, self._task, self._dev, self._build = config, task, dev, build
        self._spans, self.names = spans, sorted(set(spans["train"].labels))
        train = spans["train"].numbers(self.names)
        self._labels = train, spans["dev"].numbers(self.names)
        self._control = [control_labels(spans[name], train, config.seed) for name in SPLITS]

    def trained(self, features: Sequence[Features]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Return each layer's scores, and what scalar mixes of layers show.

        The mixes are those of Tenney et al. ("BERT Rediscovers the Classical NLP Pipeline", 2019):
        `weights` of all layers, and `center_of_gravity`, their mean layer; `scores` of the mixes of
        layers 0 to l, and `expected_layer`: at which layer the score is gained, on average
        (equation 4); None: it does not grow.
        """
        count = features[0].shape[1]
        single, mixed = np.eye(count, dtype=bool), np.tri(count, dtype=bool)
        found, weights = self._fit(features, np.concatenate([single, single, mixed]), count)
        layers = self._selective(found, count)
        if self._config.hidden is not None:
            hidden, _ = self._fit(
                features, np.concatenate([single, single]), count, self._config.hidden
            )
            for layer, scores in zip(layers, self._selective(hidden, count), strict=True):
                layer["hidden"] = scores
        scores = [self._main(own) for own in found[2 * count :]]
        gains, numbers = np.diff(scores), np.arange(count)
        total = float(gains.sum())
        return layers, {
            "weights": [round(float(weight), 4) for weight in weights[-1]],
            "center_of_gravity": float(weights[-1] @ numbers),
            "scores": scores,
            "expected_layer": float(gains @ numbers[1:]) / total if total > 0 else None,
        }

    def linear(self, features: Sequence[Features]) -> list[float]:
        """Return each layer's main score by linear probes."""
        found, _ = self._fit(features, np.eye(features[0].shape[1], dtype=bool), 0)
        return [self._main(own) for own in found]

    def constant(self) -> float:
        """Return the main score of the most frequent label."""
        label = int(np.bincount(self._labels[0]).argmax())
        return self._main(np.full(len(self._spans["dev"]), label))

    def score(self, predictions: Ints) -> dict[str, float]:
        """Return the metrics of predicted label numbers, int64 [n], the main one first."""
        accuracy = {"accuracy": float((predictions == self._labels[1]).mean())}
        if self._config.target != "words":
            return accuracy
        labels = [self.names[number] for number in predictions]
        ends = np.cumsum([0, *map(len, self._dev.words)])
        tags = [labels[begin:end] for begin, end in pairwise(ends.tolist())]
        return {**self._task.score(self._dev, Tags(tags=tags, scores=[])), **accuracy}

    def _main(self, predictions: Ints) -> float:
        return next(iter(self.score(predictions).values()))

    def _selective(self, predictions: Ints, count: int) -> list[dict[str, Any]]:
        """Return each layer's scores, with its accuracy in the control task, and selectivity.

        Args:
            predictions: int64 [2 layers or more, n], of the real labels, then of the control's.
        """
        scores = []
        for own, control in zip(predictions[:count], predictions[count : 2 * count], strict=True):
            real = self.score(own)
            accuracy = float((control == self._control[1]).mean())
            selectivity = real["accuracy"] - accuracy
            scores.append({**real, "control": accuracy, "selectivity": selectivity})
        return scores

    def _fit(
        self,
        features: Sequence[Features],
        layers: npt.NDArray[np.bool_],
        count: int,
        hidden: int | None = None,
    ) -> tuple[Ints, npt.NDArray[np.float32]]:
        """Train probes; return their predictions on dev, [G, n], and their weights of the layers.

        Args:
            layers: bool [G, layers], layers of each probe; probes `count` to 2 `count` have the
                labels of the control task.
        """
        config, is_control = self._config, np.zeros((len(layers), 1), bool)
        is_control[count : 2 * count] = True
        labels = [
            np.where(is_control, control, real)
            for real, control in zip(self._labels, self._control, strict=True)
        ]
        size = features[0].shape[2]
        probes = Probes(layers, size, len(self.names), hidden, config.seed).to(
            features[0][:1].device
        )

        def report(epoch: int) -> None:
            self._build.report.progress(epoch, None, "epochs", {})

        predictions = fit(probes, features, labels, config.seed, report)
        return predictions, probes.weights.detach().cpu().numpy()
