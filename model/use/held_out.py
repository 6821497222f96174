"""What the stage perplexity does, once torch is there: read the checkpoint, score the held-out rows."""

from __future__ import annotations

import json
from typing import Literal

from model import checkpoint
from model.data.layouts import layout_for
from model.families.config import ways
from model.objectives import choose
from model.train.data import open_dataset
from model.train.distributed import join
from model.train.heldout import HeldOut, evaluate
from model.train.precision import DTYPES, Precision, resolve
from model.train.samples import directions_of
from model.train.scoring import Scoring
from model.train.start import begin, build_network
from pipeline.core import storage
from pipeline.core.errors import DataError
from pipeline.core.stage import Build, Outcome

METRICS = "metrics.json"
TOLD = ("heldout_loss", "heldout_perplexity", "heldout_accuracy")


def run(build: Build, *, rows: int, batch_size: int, precision: Precision | Literal["auto"]) -> Outcome:
    """Score the checkpoint's first objective, mlm as a rule.

    Args:
        rows: the most held-out rows.
        batch_size: rows at once.

    Raises:
        UsageError: the checkpoint's model cannot read the dataset.
        DataError: checkpoint or dataset is missing or damaged, or has no held-out rows.
    """
    world = join(build.execution)
    kind = resolve(precision, world.device)
    data = open_dataset(build.inputs["dataset"], False, world)
    rows = min(rows, len(data.heldout))
    if not rows:
        raise DataError(f"{build.inputs['dataset']} holds no rows out; set corpus.heldout_fraction and make it again")
    beginning = begin(None, build.inputs["checkpoint"], data.info, data.tokenizer)
    network, _ = build_network(beginning)
    with checkpoint.held(build.inputs["checkpoint"]) as directory:
        own = ways(checkpoint.described(directory).heads)
    names = choose(beginning.model, data.info, None if own in (("mlm",), ("lm",)) else own, None)
    scoring = Scoring(network, names, kind).to(world.device)
    heldout = HeldOut(
        shards=data.heldout,
        rows=rows,
        batch=batch_size,
        pad=data.info.special.pad,
        mask=data.info.special.mask,
        longest=data.info.length,
        layout=layout_for([network], world.device, DTYPES[kind], packed_rows=data.info.packed),
        directions=directions_of(names, None, max(rows, 2)),
    )
    build.report.progress(0, rows, "rows", {})
    found = evaluate(scoring, heldout, world)
    metrics = {name: found[name] for name in TOLD if name in found}
    if not metrics:
        raise DataError(f"the held-out rows of {build.inputs['dataset']} have nothing to predict; make it from more text")
    build.report.progress(rows, rows, "rows", {})
    storage.write_bytes(build.file(METRICS), (json.dumps({"rows": rows, **metrics}, indent=1) + "\n").encode())
    return Outcome(rows=rows, summary={"metrics": metrics, "precision": kind})
