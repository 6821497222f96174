"""What the lab adds to Cloze."""

from cloze.core.plugins import Plugin, Row

PLUGIN = Plugin(
    name="domain",
    summary="A checkpoint trained further on the texts of a domain.",
    rows={
        "commands": {
            "adapt": Row(
                "cloze.labs.domain.adapt:adapt",
                help="Train a checkpoint further on the texts of a domain.",
            )
        },
        "tasks": {"scierc-entities": Row("cloze.labs.domain.tasks:SCIERC_ENTITIES")},
    },
    presets="presets",
)
