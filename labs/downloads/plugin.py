"""What the lab adds to Cloze."""

from cloze.core.plugins import Plugin, Row

PLUGIN = Plugin(
    name="downloads",
    summary="Public texts and task data, downloaded, checked and unpacked.",
    rows={
        "commands": {
            "fetch": Row(
                "cloze.labs.downloads.fetch:fetch",
                help="Download a text collection, such as simplewiki.",
            )
        }
    },
)
