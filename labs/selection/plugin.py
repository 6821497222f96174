"""What the lab adds to Cloze."""

from cloze.core.plugins import Plugin, Row

_LAB = "cloze.labs.selection"

PLUGIN = Plugin(
    name="selection",
    summary="Choose a corpus's documents by a quality filter, and by their meaning.",
    rows={
        "commands": {
            "train-filter": Row(
                f"{_LAB}.commands:train_filter",
                help="Train a quality filter from good and bad documents.",
            ),
            "embed-corpus": Row(
                f"{_LAB}.commands:embed_corpus",
                help="Compute an embedding for each document of a corpus.",
            ),
            "semdedup": Row(
                f"{_LAB}.commands:semdedup", help="Remove semantic duplicates from a corpus."
            ),
        },
        "stages": {
            "vectors": Row(f"{_LAB}.stages:VECTORS", command=False, before="entities"),
            "semdedup": Row(f"{_LAB}.stages:SEMDEDUP", before="entities", stands_for=("corpus",)),
        },
        "tools": {"filter": Row(f"{_LAB}.stages:FILTER", before="explain")},
        "steps": {"learned": Row(f"{_LAB}.learned:STEP", before="blocked_words")},
        "headings": {
            "corpus/learned": Row(f"{_LAB}.commands:OF_CORPUS"),
            "filter": Row(f"{_LAB}.commands:OF_FILTER"),
            "vectors": Row(f"{_LAB}.commands:OF_VECTORS"),
            "semdedup": Row(f"{_LAB}.commands:OF_SEMDEDUP"),
        },
    },
)
