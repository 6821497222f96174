"""The stages merge (mean of checkpoints of a training) and perplexity (loss on held-out rows)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from cloze.core import storage
from cloze.core.artifacts import checkpoints
from cloze.core.errors import DataError, UsageError
from cloze.core.stages.stage import BuildContext, StageResult
from cloze.model import checkpoint
from cloze.model.data.layouts import layout_for
from cloze.model.families.config import prediction_objectives
from cloze.model.objectives import choose
from cloze.model.train.distributed import init_distributed
from cloze.model.train.evaluate.heldout import HeldoutSet, evaluate
from cloze.model.train.evaluate.scoring import PretrainModule
from cloze.model.train.loop.data import attention_modes, open_dataset
from cloze.model.train.precision import DTYPES, Precision, resolve
from cloze.model.train.resume.initialization import build_network, initial_model

CHECKPOINT = "checkpoint"
LAST = 3  # default number of checkpoints


def merge_checkpoints(
    build: BuildContext, last: int | None, steps: Sequence[int], decay: float
) -> StageResult:
    """Write the weighted mean of checkpoints as a new checkpoint.

    Args:
        last: number of newest checkpoints; None: `LAST`.
        steps: steps of the checkpoints, instead of `last`.
        decay: weight of each checkpoint relative to the next newer one.

    Returns:
        summary: `checkpoint`; `merged`, the steps; `weights`; `parameters`.

    Raises:
        UsageError: the training does not keep the requested checkpoints.
        DataError: a checkpoint is damaged.
    """
    with contextlib.ExitStack() as stack:
        chosen = select_checkpoints(build.inputs["checkpoint"], last or LAST, steps)
        for path in chosen:
            stack.enter_context(checkpoints.pinned(path))
            checkpoint.verify(path, training=False)
        weights = shares(len(chosen), decay)
        newest = checkpoint.load_metadata(chosen[-1])
        state = mean(chosen, weights)
        checkpoint.save_weights(
            build.file(CHECKPOINT),
            model=newest.model,
            state=state,
            tokenizer=newest.tokenizer,
            heads=newest.heads,
            task=newest.task,
            dataset=newest.dataset,
            datasets=newest.datasets,
            step=newest.step,
        )
    checkpoint.finalize(build.file(CHECKPOINT))
    return StageResult(
        summary={
            "checkpoint": CHECKPOINT,
            "merged": [checkpoints.parse_step(path) for path in chosen],
            "weights": [round(weight, 6) for weight in weights],
            "parameters": sum(tensor.numel() for tensor in state.values()),
        }
    )


def select_checkpoints(path: str, last: int, steps: Sequence[int]) -> list[str]:
    """Return the directories of the training's checkpoints to merge, oldest first.

    Raises:
        UsageError: the training does not keep them.
    """
    by_step = {
        checkpoints.parse_step(directory): directory
        for directory in checkpoints.complete_steps(path)
    }
    available = (
        f"keeps checkpoints of {len(by_step)} step{'' if len(by_step) == 1 else 's'} "
        f"({', '.join(map(str, by_step)) or 'none'})"
    )
    remedy = "train with keep_for_merge or milestones, which keep more"
    if steps:
        missing = sorted(set(steps) - by_step.keys())
        if missing:
            raise UsageError(
                f"{path} {available}, none of {', '.join(map(str, missing))}; name some of these, "
                f"or {remedy}"
            )
        return [by_step[step] for step in sorted(set(steps))]
    if len(by_step) < last:
        raise UsageError(f"{path} {available}, last asks for {last}; lower it, or {remedy}")
    return list(by_step.values())[-last:]


def shares(count: int, decay: float) -> list[float]:
    """Return the normalized weights of `count` checkpoints, oldest first."""
    raw = [decay ** (count - 1 - number) for number in range(count)]
    return [weight / sum(raw) for weight in raw]


def mean(directories: Sequence[str], weights: Sequence[float]) -> dict[str, Tensor]:
    """Return the weighted mean of complete checkpoints, fp32, summed in fp64 tensor by tensor."""
    merged, files = (
        dict[str, Tensor](),
        [checkpoint.weights(directory) for directory in directories],
    )
    for name in files[0]:
        total = weights[0] * files[0][name].double()
        for weight, tensors in zip(weights[1:], files[1:], strict=True):
            total += weight * tensors[name].double()
        merged[name] = total.float()
    for file in files:
        file.clear()
    return merged


# Perplexity.

METRICS = "metrics.json"
# Predictions and summed loss per group of rows, for paired comparison of checkpoints.
LOSSES = "losses.json"
GROUPS = 64  # minimum number of groups, if there are enough rows
REPORTED_METRICS = ("heldout_loss", "heldout_perplexity", "heldout_accuracy")


def compute_perplexity(
    build: BuildContext, *, rows: int, batch_size: int, precision: Precision | Literal["auto"]
) -> StageResult:
    """Evaluate the checkpoint's first objective, usually mlm.

    Args:
        rows: maximum number of held-out rows.
        batch_size: maximum rows per forward pass.

    Raises:
        UsageError: the model cannot read the dataset.
        DataError: checkpoint or dataset is missing or damaged, or has no held-out rows.
    """
    world = init_distributed(build.execution)
    compute_precision = resolve(precision, world.device)
    data = open_dataset(build.inputs["dataset"], False, world)
    rows = min(rows, len(data.heldout))
    if not rows:
        raise DataError(
            f"{build.inputs['dataset']} has no held-out rows; set corpus.heldout_fraction above 0 "
            f"and rebuild corpus and dataset"
        )
    initial = initial_model(None, build.inputs["checkpoint"], data.info, data.tokenizer)
    network, _ = build_network(initial)
    with checkpoint.resolve_pinned(build.inputs["checkpoint"]) as directory:
        trained_objectives = prediction_objectives(checkpoint.load_metadata(directory).heads)
    names = choose(
        initial.model,
        data.info,
        None if trained_objectives in (("mlm",), ("lm",)) else trained_objectives,
        None,
    )
    scoring = PretrainModule(network, names, compute_precision).to(world.device)
    heldout = HeldoutSet(
        shards=data.heldout,
        rows=rows,
        batch=min(batch_size, max(1, rows // GROUPS)),
        pad=data.info.special.pad,
        mask=data.info.special.mask,
        longest=data.info.length,
        layout=layout_for(
            [network], world.device, DTYPES[compute_precision], packed_rows=data.info.packed
        ),
        directions=attention_modes(names, None, max(rows, 2)),
    )
    build.report.progress(0, rows, "rows", {})
    groups: list[tuple[float, float]] = []
    results = evaluate(scoring, heldout, world, groups=groups)
    metrics = {name: results[name] for name in REPORTED_METRICS if name in results}
    if not metrics:
        raise DataError(
            f"the held-out rows of {build.inputs['dataset']} have nothing to predict; make it from "
            f"more text"
        )
    build.report.progress(rows, rows, "rows", {})
    storage.write_bytes(
        build.file(METRICS), (json.dumps({"rows": rows, **metrics}, indent=1) + "\n").encode()
    )
    predictions, losses = zip(*groups, strict=True)
    content = {
        "objective": names[0],
        "predictions": predictions,
        "losses": [round(loss, 6) for loss in losses],
    }
    storage.write_bytes(build.file(LOSSES), (json.dumps(content) + "\n").encode())
    return StageResult(
        rows=rows, summary={"metrics": metrics, "precision": compute_precision, "losses": LOSSES}
    )
