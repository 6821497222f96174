"""What the lab adds to Cloze."""

from cloze.core.plugins import Plugin, Row

PLUGIN = Plugin(
    name="xlnet",
    summary="XLNet: tokens are predicted in random orders, by two streams of attention.",
    rows={
        "families": {"xlnet": Row("cloze.labs.xlnet.xlnet")},
        "objectives": {"plm": Row("cloze.labs.xlnet.two_stream:PLM", before="nsp")},
    },
)
