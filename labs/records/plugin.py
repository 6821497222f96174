"""What the lab adds to Cloze."""

from cloze.core.plugins import Plugin, Row

PLUGIN = Plugin(
    name="records",
    summary="A record book of short pretrainings, and the BabyLM challenge.",
    rows={
        "commands": {
            "record": Row(
                "cloze.labs.records.record:record",
                help="Check trainings against a record book; enter a record.",
            )
        },
        "families": {"modern-values": Row("cloze.labs.records.modern_values", before="deberta")},
        "readers": {"babylm": Row("cloze.labs.records.babylm:reader", before="parquet")},
    },
    presets="presets",
)
