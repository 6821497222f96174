"""What the lab adds to Cloze."""

from cloze.core.plugins import Plugin, Row

PLUGIN = Plugin(
    name="longformer",
    summary="Longformer: rows of thousands of tokens, by sliding windows and global tokens.",
    rows={"families": {"longformer": Row("cloze.labs.longformer.longformer", before="deberta")}},
)
