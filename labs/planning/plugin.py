"""What the lab adds to Cloze."""

from cloze.core.plugins import Plugin, Row

PLUGIN = Plugin(
    name="planning",
    summary="Plan a large pretraining: memory and hours on GPUs of a kind.",
    rows={
        "commands": {
            "plan-training": Row(
                "cloze.labs.planning.command:plan_training",
                help="Estimate the memory and hours of a pretraining.",
            )
        }
    },
)
