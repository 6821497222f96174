"""`python -m model.worker JOB`: a training or inference stage in a process of its own, one of WORLD_SIZE ranks."""

from __future__ import annotations

import sys

from pipeline.job import main

STAGES = {
    "pretrain": "model.train.stage:STAGE",
    "finetune": "model.finetune.stage:STAGE",
    "evaluate": "model.evaluate.stage:STAGE",
    "fill-mask": "model.infer.fill_mask:STAGE",
    "export": "model.hub.export:STAGE",
    "import": "model.hub.imports:STAGE",
}

if __name__ == "__main__":
    sys.exit(main(STAGES))
