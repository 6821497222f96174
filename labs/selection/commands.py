"""Commands of the lab, and the headings of their options."""

from __future__ import annotations

from cloze.flows.commands.base.stage_command import StageCommand
from cloze.flows.commands.data_stages import source_option

OF_CORPUS = {"Quality filter": "*quality_filter -quality_filter_loss -quality_filter_sources"}
OF_FILTER = {"Documents": "*good *bad *language", "Model": "bits"}
OF_VECTORS = {
    "Vectors": "*pooling *max_length *windows",
    "Memory and speed": "*precision *micro_batch engine",
}
OF_SEMDEDUP = {"Deduplication": "*similarity *center clusters rounds"}

train_filter = StageCommand(
    "train-filter",
    stage="filter",
    help="Train a quality filter from good and bad documents.\n\nUse it with `cloze corpus"
    " --quality-filter DIR`.",
    spelled={
        "good": source_option("--good", required=True),
        "bad": source_option("--bad", required=True),
    },
)
embed_corpus = StageCommand(
    "embed-corpus", stage="vectors", help="Compute an embedding for each document of a corpus."
)
semdedup = StageCommand(
    "semdedup",
    stage="semdedup",
    help="Remove semantic duplicates from a corpus.",
    inputs={"vectors": ("--embeddings", "Artifact of `cloze embed-corpus`.")},
)
