"""What the lab adds to Cloze."""

from cloze.core.plugins import Plugin, Row

_LAB = "cloze.labs.task_card"

PLUGIN = Plugin(
    name="task_card",
    summary="A look at a task's data: classes, lengths, repeats, shortcuts.",
    rows={
        "commands": {
            "task-card": Row(
                f"{_LAB}.commands:task_card",
                help="Show a task's classes, lengths, repeats and shortcuts.",
            )
        },
        "stages": {"task-card": Row(f"{_LAB}.stages:STAGE", before="report")},
        "headings": {"task-card": Row(f"{_LAB}.commands:HEADINGS")},
        "report_sections": {"task-card": Row(f"{_LAB}.commands:SECTION")},
        "split_checks": {"task-card": Row(f"{_LAB}.card:before_training")},
    },
)
