"""What the lab adds to Cloze."""

from cloze.core.plugins import Plugin, Row

_TASKS, _FORMATS = "cloze.labs.relations.tasks", "cloze.labs.relations.official"

PLUGIN = Plugin(
    name="relations",
    summary="Relations: a label for two marked entities, as in TACRED, SemEval-2010 and WiC.",
    rows={
        "task_kinds": {"relation": Row(f"{_TASKS}:KIND", before="regression")},
        "task_formats": {
            name: Row(f"{_FORMATS}:{name}", before="multirc")
            for name in ("semeval2010", "tacred", "wic")
        },
        "tasks": {
            **{
                name: Row(f"{_TASKS}:{name.upper()}", before="swag")
                for name in ("semeval2010", "tacred", "chemprot", "scierc", "wic")
            },
            "relation": Row(f"{_TASKS}:RELATION", before="regression"),
        },
    },
)
