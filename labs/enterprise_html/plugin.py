"""What the lab adds to Cloze."""

from cloze.core.plugins import Plugin, Row

PLUGIN = Plugin(
    name="enterprise_html",
    summary="Rendered pages as a source: dumps of Wikimedia Enterprise, archives, folders.",
    rows={"readers": {"html": Row("cloze.labs.enterprise_html.reader:reader", before="books")}},
)
