"""`python -m model.worker JOB`: a training or inference stage in a process of its own, one of WORLD_SIZE ranks."""

from __future__ import annotations

import sys

from pipeline.core.worker import main

STAGES = {
    "pretrain": "model.train.stage:STAGE",
    "finetune": "model.tasks.finetune.stage:STAGE",
    "evaluate": "model.tasks.evaluate.stage:STAGE",
    "fill-mask": "model.use.fill_mask:STAGE",
    "export": "model.hub.export_stage:STAGE",
    "import": "model.hub.import_stage:STAGE",
}

if __name__ == "__main__":
    sys.exit(main(STAGES))
