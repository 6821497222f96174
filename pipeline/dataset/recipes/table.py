"""The recipes by name. Light: configs read it, and import the recipe that is asked for.

A recipe is one file and one line here: a function without arguments that gives a `Recipe`, and cites the paper.
"""

from __future__ import annotations

RECIPES = {
    "bert": "pipeline.dataset.recipes.bert:bert",
    "bert-wwm": "pipeline.dataset.recipes.bert:bert_wwm",
    "roberta": "pipeline.dataset.recipes.roberta:roberta",
    "roberta-doc": "pipeline.dataset.recipes.roberta:roberta_doc",
    "albert": "pipeline.dataset.recipes.albert:albert",
    "spanbert": "pipeline.dataset.recipes.spanbert:spanbert",
    "electra": "pipeline.dataset.recipes.electra:electra",
    "lm": "pipeline.dataset.recipes.lm:lm",
    "packed": "pipeline.dataset.recipes.packed:packed",
}
