"""What the lab adds to Cloze."""

from cloze.core.plugins import Plugin, Row

_LAB = "cloze.labs.inside"

PLUGIN = Plugin(
    name="inside",
    summary="Look inside a checkpoint: attention, heads, layers, probes; prune it.",
    rows={
        "commands": {
            "attention": Row(
                f"{_LAB}.analysis:attention",
                help="Show a text's attention maps, by layer and head.",
            ),
            "heads": Row(
                f"{_LAB}.analysis:heads",
                help="Measure what each attention head attends to.",
            ),
            "probe": Row(
                f"{_LAB}.probing:probe",
                help="Score probes of each layer of a frozen checkpoint.",
            ),
            "neighbours": Row(
                f"{_LAB}.analysis:neighbours",
                help="Find nearest occurrences of a word, and nearest words.",
            ),
            "layers": Row(
                f"{_LAB}.probing:layers",
                help="Measure how layers change states, and their similarity.",
            ),
            "prune": Row(
                f"{_LAB}.pruning:prune",
                help="Remove layers, attention heads or weights of a checkpoint.",
            ),
        },
        "stages": {
            "prune": Row(f"{_LAB}.prune_stage:STAGE", before="evaluate", stands_for=("merge",)),
            "heads": Row(f"{_LAB}.heads_stage:STAGE", before="report"),
            "probe": Row(f"{_LAB}.layer_stages:PROBE", before="report"),
            "layers": Row(f"{_LAB}.layer_stages:LAYERS", before="report"),
        },
        "tools": {
            "neighbours": Row(f"{_LAB}.neighbours_config:STAGE"),
            "attention": Row(f"{_LAB}.attention_stage:STAGE"),
        },
        "verbs": {"neighbours": Row(f"{_LAB}.neighbours_config:PREDICTOR")},
        "headings": {
            name: Row(f"{_LAB}.section:{name.upper()}")
            for name in ("prune", "heads", "probe", "layers")
        },
        "report_sections": {"inside": Row(f"{_LAB}.section:SECTION")},
    },
    presets="presets",
)
