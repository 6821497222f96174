"""The stages merge (mean of checkpoints of a training) and perplexity (loss on held-out rows)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from cloze.core import storage
from cloze.core.artifacts import checkpoint_files, checkpoints
from cloze.core.errors import DataError, UsageError
from cloze.core.stages.stage import CHECKPOINT, BuildContext, StageResult
from cloze.model import checkpoint
from cloze.model.data.layouts import layout_for
from cloze.model.families.config import prediction_objectives
from cloze.model.objectives import choose, transform_of
from cloze.model.tasks.files import METRICS_FILE, write_json
from cloze.model.train.distributed import init_distributed
from cloze.model.train.evaluate.heldout import HeldoutSet, evaluate
from cloze.model.train.evaluate.scoring import PretrainModule
from cloze.model.train.loop.data import attention_modes, open_dataset
from cloze.model.train.precision import DTYPES, place, resolve
from cloze.model.train.resume.initialization import build_network, initial_model
from cloze.model.use.configs import MergeConfig, PerplexityConfig

LAST = 3  # default number of checkpoints


def merge_checkpoints(config: MergeConfig, build: BuildContext) -> StageResult:
    """Write the weighted mean of checkpoints as a new checkpoint.

    Returns:
        summary: `checkpoint`; `merged`, the steps; `weights`; `parameters`.

    Raises:
        UsageError: the training does not keep the requested checkpoints.
        DataError: a checkpoint is damaged.
    """
    with contextlib.ExitStack() as stack:
        selected = select_checkpoints(build.inputs["checkpoint"], config.last or LAST, config.steps)
        for path in selected:
            stack.enter_context(checkpoints.pinned(path))
            checkpoint_files.verify(path, training=False)
        weights = shares(len(selected), config.decay)
        newest = checkpoint.load_metadata(selected[-1])
        state = mean(selected, weights)
        checkpoint.save_weights(
            build.file(CHECKPOINT), state=state, **checkpoint.metadata_of(newest)
        )
    checkpoint.finalize(build.file(CHECKPOINT))
    return StageResult(
        summary={
            "checkpoint": CHECKPOINT,
            "merged": [checkpoints.parse_step(path) for path in selected],
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
    """Return the weighted mean of complete checkpoints, fp32, summed in fp64 tensor by tensor.

    Counters and other integers have no mean: those of the last checkpoint stay.
    """
    merged: dict[str, Tensor] = {}
    files = [checkpoint.weights(directory) for directory in directories]
    for name in files[0]:
        if not (last := files[-1][name]).is_floating_point():
            merged[name] = last
            continue
        total = weights[0] * files[0][name].double()
        for weight, tensors in zip(weights[1:], files[1:], strict=True):
            total += weight * tensors[name].double()
        merged[name] = total.float()
    for file in files:
        file.clear()
    return merged


# Perplexity.

# Predictions and summed loss per group of rows, for paired comparison of checkpoints.
LOSSES = "losses.json"
GROUPS = 64  # minimum number of groups, if there are enough rows
REPORTED_METRICS = ("loss", "perplexity", "accuracy")


def compute_perplexity(config: PerplexityConfig, build: BuildContext) -> StageResult:
    """Evaluate the checkpoint's objectives, usually mlm, on the rows as in its training.

    Raises:
        UsageError: the model cannot read the dataset.
        DataError: checkpoint or dataset is missing or damaged, or has no held-out rows.
    """
    world = init_distributed(build.execution)
    precision = resolve(config.precision, world.device)
    data = open_dataset(build.inputs["dataset"], False, world)
    rows = min(config.rows, len(data.heldout))
    if not rows:
        raise DataError(
            f"{build.inputs['dataset']} has no held-out rows; set corpus.heldout_fraction above 0 "
            f"and rebuild corpus and dataset"
        )
    initial = initial_model(None, build.inputs["checkpoint"], data.info, data.tokenizer)
    network, _ = build_network(initial)
    with checkpoint.resolve_pinned(build.inputs["checkpoint"]) as directory:
        metadata = checkpoint.load_metadata(directory)
        metadata.require_trained("masked_lm", "lm", "seq2seq")
        heads = metadata.heads
    trained_objectives: tuple[str, ...] | None = prediction_objectives(heads)
    if trained_objectives in (("mlm",), ("lm",)):
        trained_objectives = None  # the default of model and dataset
    names = choose(initial.model, data.info, trained_objectives, None)
    scoring = place(PretrainModule(network, names, precision), world.device, precision)
    heldout = HeldoutSet(
        shards=data.heldout,
        rows=rows,
        batch=min(config.batch_size, max(1, rows // GROUPS)),
        pad=data.info.special.pad,
        mask=data.info.special.mask,
        longest=data.info.length,
        layout=layout_for([network], world.device, DTYPES[precision], packed_rows=data.info.packed),
        directions=replace(
            attention_modes(names, heads.get("masked_lm", {}).get("causal_share"), max(rows, 2)),
            transform=transform_of(names, initial.model, data.info, data.tokenizer, seed=0),
        ),
    )
    build.report.progress(0, rows, "rows", {})
    groups: list[tuple[float, float]] = []
    results = evaluate(scoring, heldout, world, groups=groups)
    reported = [
        f"heldout_{name}{figure}"
        for name in ("", *(f"{other}_" for other in names[1:]))
        for figure in REPORTED_METRICS
    ]
    metrics = {name: results[name] for name in reported if name in results}
    if not metrics:
        raise DataError(
            f"the held-out rows of {build.inputs['dataset']} have nothing to predict; make it from "
            f"more text"
        )
    build.report.progress(rows, rows, "rows", {})
    write_json(build.file(METRICS_FILE), {"rows": rows, **metrics})
    predictions, losses = zip(*groups, strict=True)
    content = {
        "objective": names[0],
        "predictions": predictions,
        "losses": [round(loss, 6) for loss in losses],
    }
    storage.write_bytes(build.file(LOSSES), (json.dumps(content) + "\n").encode())
    return StageResult(
        rows=rows, summary={"metrics": metrics, "precision": precision, "losses": LOSSES}
    )
