"""The stage finetune: pretrained checkpoint and labelled data -> checkpoint, metrics, predictions.

The command line imports this module at every start; it imports only pydantic and the task table.
"""

from __future__ import annotations

from cloze.core.stages.stage import InputSpec, Stage, deferred
from cloze.model.tasks.files import headline
from cloze.model.tasks.finetune.config import FinetuneConfig
from cloze.model.tasks.finetune.cost import FINETUNE_COSTS
from cloze.model.tasks.table import kind_inputs

VERSION = 6


STAGE = Stage(
    name="finetune",
    version=VERSION,
    config=FinetuneConfig,
    run=deferred("cloze.model.tasks.finetune.run:run"),
    inputs={  # no checkpoint is needed with from_scratch and model
        "checkpoint": InputSpec(
            kinds=("pretrain",), explicit_kinds=("finetune", "import", "merge")
        ),
        "corpus": InputSpec(kinds=("corpus",)),
        "vocab": InputSpec(kinds=("vocab",)),
        "teacher": InputSpec(kinds=("finetune",), explicit_only=True),
        **kind_inputs(),
    },
    unhashed_files=("metrics.jsonl", "skipped.jsonl", "cost.jsonl", "from_scratch.jsonl"),
    worker="cloze.model",
    on_gpu=True,
    parallel=True,
    outputs=("checkpoint", "predictions"),
    headline=headline,
    cost_model=FINETUNE_COSTS,
    comparison_metrics=("metrics",),
)
