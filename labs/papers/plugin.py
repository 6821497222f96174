"""What the lab adds to Cloze."""

from cloze.core.plugins import Plugin, Row

PLUGIN = Plugin(
    name="papers",
    summary="Tables of papers as runs, and GLUE's submission.",
    rows={
        "families": {"ltr": Row("cloze.labs.papers.ltr", before="spanbert")},
        "stages": {
            "submission": Row("cloze.labs.papers.submission:STAGE", before="report", command=False)
        },
        "report_sections": {"paper": Row("cloze.labs.papers.section:SECTION")},
    },
    presets="presets",
)
