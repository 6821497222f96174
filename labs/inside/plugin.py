"""What the lab adds to Cloze."""

from cloze.core.plugins import Plugin, Row

_LAB = "cloze.labs.inside"

PLUGIN = Plugin(
    name="inside",
    summary="Look inside a checkpoint: attention, heads, layers, probes; prune it.",
    rows={
        "commands": {
            "attention": Row(
                f"{_LAB}.commands:attention",
                help="Show a text's attention maps, by layer and head.",
            ),
            "heads": Row(
                f"{_LAB}.commands:heads", help="Measure what each attention head attends to."
            ),
            "probe": Row(
                f"{_LAB}.commands:probe", help="Score probes of each layer of a frozen checkpoint."
            ),
            "neighbours": Row(
                f"{_LAB}.commands:neighbours",
                help="Find nearest occurrences of a word, and nearest words.",
            ),
            "layers": Row(
                f"{_LAB}.commands:layers",
                help="Measure how layers change states, and their similarity.",
            ),
            "prune": Row(
                f"{_LAB}.commands:prune",
                help="Remove layers, attention heads or weights of a checkpoint.",
            ),
        },
        "stages": {
            "prune": Row(f"{_LAB}.stages:PRUNE", before="evaluate", stands_for=("merge",)),
            "heads": Row(f"{_LAB}.stages:HEADS", before="report"),
            "probe": Row(f"{_LAB}.stages:PROBE", before="report"),
            "layers": Row(f"{_LAB}.stages:LAYERS", before="report"),
        },
        "tools": {
            "neighbours": Row(f"{_LAB}.stages:NEIGHBOURS_STAGE"),
            "attention": Row(f"{_LAB}.stages:ATTENTION_STAGE"),
        },
        "verbs": {"neighbours": Row(f"{_LAB}.stages:NEIGHBOURS")},
        "headings": {
            name: Row(f"{_LAB}.commands:{name.upper()}")
            for name in ("prune", "heads", "probe", "layers")
        },
        "report_sections": {"inside": Row(f"{_LAB}.commands:SECTION")},
    },
    presets="presets",
)
