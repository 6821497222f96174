"""What the lab adds to Cloze."""

from cloze.core.plugins import Plugin, Row

_ROWS = "cloze.labs.levers.rows"

PLUGIN = Plugin(
    name="levers",
    summary="Ways to faster steps on a GPU that no GPU has measured yet.",
    rows={
        "gpu_levers": {
            "attention": Row(f"{_ROWS}:ATTENTION"),
            "shapes": Row(f"{_ROWS}:SHAPES"),
            "graphs": Row(f"{_ROWS}:GRAPHS"),
            "whole-step": Row(f"{_ROWS}:WHOLE_STEP"),
            "clip": Row(f"{_ROWS}:CLIP"),
            "weights": Row(f"{_ROWS}:WEIGHTS"),
            "table": Row(f"{_ROWS}:TABLE"),
            "finetune": Row(f"{_ROWS}:FINETUNE"),
        }
    },
)
