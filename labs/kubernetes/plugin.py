"""What the lab adds to Cloze."""

from cloze.core.plugins import Plugin, Row

PLUGIN = Plugin(
    name="kubernetes",
    summary="The launcher kubernetes: trainings as TrainJobs of Kubeflow.",
    rows={
        "launchers": {
            "kubernetes": Row(
                "cloze.labs.kubernetes.launcher:LAUNCHER",
                help="Pod setting for --launcher kubernetes: image=…, claim=NAME:/PATH, queue=…"
                " (docs/how-to/many-hosts.md). Repeatable.",
            )
        }
    },
)
