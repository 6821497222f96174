"""What the lab adds to Cloze."""

from cloze.core.plugins import Plugin, Row

_LAB = "cloze.labs.costs"

PLUGIN = Plugin(
    name="costs",
    summary="Latency, energy and size of a model, as limits of the nightly gate, too; int8.",
    rows={
        "commands": {
            "latency": Row(
                f"{_LAB}.command:latency", help="Measure a checkpoint's latency, or two in turn."
            )
        },
        "stages": {"latency": Row(f"{_LAB}.stage:LATENCY", before="report")},
        "headings": {"latency": Row(f"{_LAB}.command:HEADINGS")},
        "report_sections": {"latency": Row(f"{_LAB}.command:SECTION")},
        "promotion_limits": {
            name: Row(f"{_LAB}.limits:{name.upper()}")
            for name in ("latency_ms", "latency_p99_ms", "latency_ratio", "energy_mj", "size_mb")
        },
        "precisions": {"int8": Row(f"{_LAB}.int8:convert")},
    },
)
