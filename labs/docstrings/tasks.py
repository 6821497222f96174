"""The kind and the task `package`. No torch: the command line imports it."""

from cloze.model.tasks.options import TaskOptions
from cloze.model.tasks.table import TaskKind
from cloze.model.tasks.text_tasks import row

KIND = TaskKind("cloze.labs.docstrings.package:Package", TaskOptions, classes=True, combines=False)
PACKAGE = row("package")
