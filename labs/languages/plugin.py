"""What the lab adds to Cloze."""

from cloze.core.plugins import Plugin, Row

LAB = "cloze.labs.languages"

PLUGIN = Plugin(
    name="languages",
    summary="Models of many languages, and questions in each.",
    rows={"tasks": {name: Row(f"{LAB}.questions:{name.upper()}") for name in ("xquad", "mlqa")}},
    presets="presets",
)
