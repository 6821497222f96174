"""What the lab adds to Cloze."""

from cloze.core.plugins import Plugin, Row

_ROWS = "cloze.labs.levers.rows"
LEVERS = "attention shapes graphs whole-step clip weights table finetune"

PLUGIN = Plugin(
    name="levers",
    summary="Ways to faster steps on a GPU that no GPU has measured yet.",
    rows={
        "gpu_levers": {
            name: Row(f"{_ROWS}:{name.upper().replace('-', '_')}") for name in LEVERS.split()
        }
    },
)
