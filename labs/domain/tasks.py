"""Tasks of domains beside the core's. No torch: the command line imports it."""

from cloze.model.tasks.options import TaskSpec

# Luan et al. 2018, in the column files of SciBERT's repository
SCIERC_ENTITIES = TaskSpec(
    kind="tagging",
    options={
        "folder": "ner/sciie",
        "files": {split: (f"{split}.txt",) for split in ("train", "dev", "test")},
    },
)
