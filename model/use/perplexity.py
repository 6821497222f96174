"""The stage perplexity: the loss of a checkpoint on a dataset's held-out rows."""

from __future__ import annotations

import json
from typing import Literal

from cloze.core import storage
from cloze.core.errors import DataError
from cloze.core.stages.stage import BuildContext, StageResult
from cloze.model import checkpoint
from cloze.model.data.layouts import layout_for
from cloze.model.families.config import prediction_objectives
from cloze.model.objectives import choose
from cloze.model.train.distributed import init_distributed
from cloze.model.train.evaluate.heldout import evaluate
from cloze.model.train.evaluate.heldout_set import HeldoutSet
from cloze.model.train.evaluate.scoring import PretrainModule
from cloze.model.train.loop.batch_source import attention_modes
from cloze.model.train.loop.data import open_dataset
from cloze.model.train.precision import DTYPES, Precision, resolve
from cloze.model.train.resume.initialization import build_network, initial_model

METRICS = "metrics.json"
# Predictions and summed loss per group of rows, for paired comparison of checkpoints.
LOSSES = "losses.json"
GROUPS = 64  # minimum number of groups, if there are enough rows
TOLD = ("heldout_loss", "heldout_perplexity", "heldout_accuracy")


def run(
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
    kind = resolve(precision, world.device)
    data = open_dataset(build.inputs["dataset"], False, world)
    rows = min(rows, len(data.heldout))
    if not rows:
        raise DataError(
            f"{build.inputs['dataset']} has no held-out rows; set corpus.heldout_fraction above 0 "
            f"and rebuild corpus and dataset"
        )
    beginning = initial_model(None, build.inputs["checkpoint"], data.info, data.tokenizer)
    network, _ = build_network(beginning)
    with checkpoint.resolve_pinned(build.inputs["checkpoint"]) as directory:
        own = prediction_objectives(checkpoint.load_metadata(directory).heads)
    names = choose(beginning.model, data.info, None if own in (("mlm",), ("lm",)) else own, None)
    scoring = PretrainModule(network, names, kind).to(world.device)
    heldout = HeldoutSet(
        shards=data.heldout,
        rows=rows,
        batch=min(batch_size, max(1, rows // GROUPS)),
        pad=data.info.special.pad,
        mask=data.info.special.mask,
        longest=data.info.length,
        layout=layout_for([network], world.device, DTYPES[kind], packed_rows=data.info.packed),
        directions=attention_modes(names, None, max(rows, 2)),
    )
    build.report.progress(0, rows, "rows", {})
    groups: list[tuple[float, float]] = []
    found = evaluate(scoring, heldout, world, groups=groups)
    metrics = {name: found[name] for name in TOLD if name in found}
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
    told = {
        "objective": names[0],
        "predictions": predictions,
        "losses": [round(loss, 6) for loss in losses],
    }
    storage.write_bytes(build.file(LOSSES), (json.dumps(told) + "\n").encode())
    return StageResult(rows=rows, summary={"metrics": metrics, "precision": kind, "losses": LOSSES})
