"""What the lab adds to Cloze."""

from cloze.core.plugins import Plugin, Row

PLUGIN = Plugin(
    name="trackers",
    summary="Metrics of trainings for TensorBoard and Weights & Biases.",
    rows={
        "commands": {
            "track": Row(
                "cloze.labs.trackers.command:track",
                help="Write a run's metrics for TensorBoard or Weights & Biases.",
            )
        },
        "trackers": {
            "tensorboard": Row("cloze.labs.trackers.writers:TensorBoard"),
            "wandb": Row("cloze.labs.trackers.writers:WeightsAndBiases"),
        },
    },
)
