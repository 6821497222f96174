"""What the lab adds to Cloze."""

from cloze.core.plugins import Plugin, Row

_LAB = "cloze.labs.domain"

PLUGIN = Plugin(
    name="domain",
    summary="A checkpoint trained further on the texts of a domain, with words of it.",
    rows={
        "commands": {
            "adapt": Row(
                f"{_LAB}.adapt:adapt", help="Train a checkpoint further on the texts of a domain."
            ),
            "extend-vocab": Row(
                f"{_LAB}.extend_command:extend_vocab",
                help="Add words to a tokenizer, whose ids stay.",
            ),
        },
        "stages": {
            "extend-vocab": Row(
                f"{_LAB}.extend_vocab:STAGE", before="dataset", stands_for=("vocab",)
            )
        },
        "headings": {"extend-vocab": Row(f"{_LAB}.extend_command:HEADINGS")},
        "tasks": {"scierc-entities": Row("cloze.labs.domain.tasks:SCIERC_ENTITIES")},
    },
    presets="presets",
)
