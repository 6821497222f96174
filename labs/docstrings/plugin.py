"""What the lab adds to Cloze."""

from cloze.core.plugins import Plugin, Row

_TASKS = "cloze.labs.docstrings.tasks"

PLUGIN = Plugin(
    name="docstrings",
    summary="Docstrings of installed packages as a source, and the task of telling the package.",
    rows={
        "readers": {"docstrings": Row("cloze.labs.docstrings.reader:reader")},
        "task_kinds": {"package": Row(f"{_TASKS}:KIND", before="multitask")},
        "tasks": {"package": Row(f"{_TASKS}:PACKAGE", before="multitask")},
    },
)
