"""Tasks on two marked entities, and their options. No torch: part of configs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from cloze.model.tasks.options import TextOptions
from cloze.model.tasks.table import TaskKind
from cloze.model.tasks.text_tasks import NAMED, SPLITS, TRUTH, row, scibert, superglue


class RelationOptions(TextOptions):
    """Options of relation classification: two entities, marked by <e1>…</e1> and <e2>…</e2>."""

    markers: Annotated[tuple[str, ...], Field(min_length=4, max_length=4)] = ("@", "@", "#", "#")
    """Tokens before and after the first entity, and before and after the second one. Also unused
    tokens of the vocabulary, such as [unused1]."""

    typed: bool = False
    """Write the entity's type after its opening marker; types are in the tags: <e1:PERSON>."""

    delimiters: Annotated[tuple[str, ...], Field(max_length=4)] = ()
    """Four delimiters of the entities in the file instead of tags, such as <<, >>, [[, ]]."""

    negative: str = ""
    """Label for no relation, excluded from micro F1."""

    @field_validator("delimiters")
    @classmethod
    def _none_or_four(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(value) not in (0, 4) or not all(value):
            raise ValueError("must be four texts: before and after each of the two entities")
        return value


KIND = TaskKind("cloze.labs.relations.relation:Relation", RelationOptions, classes=True)
_SEMEVAL_RELATIONS = (
    *("Cause-Effect", "Component-Whole", "Content-Container", "Entity-Destination"),
    *("Entity-Origin", "Instrument-Agency", "Member-Collection", "Message-Topic"),
    "Product-Producer",
)
_BRACKETS = ("<<", ">>", "[[", "]]")

RELATION = row("relation")  # files of the user
# task 8 (Hendrickx et al. 2010), without a dev split: a tenth
SEMEVAL2010 = row(
    "relation", "SemEval2010_task8_all_data", "directed_f1, accuracy",
    "text=text, label=label, id=id", format="semeval2010", folds=10,
    files={
        **dict.fromkeys(("train", "dev"), ("TRAIN_FILE.TXT",
                                           "SemEval2010_task8_training/TRAIN_FILE.TXT")),
        "test": ("TEST_FILE_FULL.TXT", "SemEval2010_task8_testing_keys/TEST_FILE_FULL.TXT",
                 "TEST_FILE.txt", "SemEval2010_task8_testing/TEST_FILE.txt"),
    },
    labels=("Other", *(f"{relation}({way})" for relation in _SEMEVAL_RELATIONS
                       for way in ("e1,e2", "e2,e1"))),
)  # fmt: skip
TACRED = row(  # Zhang et al. 2017
    "relation", "tacred", "", "text=text, label=label, id=id", format="tacred",
    files={split: (f"{split}.json", f"data/json/{split}.json") for split in SPLITS},
    negative="no_relation",
)  # fmt: skip
# Kringelum et al. 2016; Luan et al. 2018. Micro F1 of ChemProt is its accuracy.
CHEMPROT = scibert(
    "relation", "text_classification/chemprot", "accuracy, macro_f1", delimiters=_BRACKETS
)
SCIERC = scibert(
    "relation", "text_classification/sciie-relation-extraction", "macro_f1, accuracy",
    delimiters=_BRACKETS,
)  # fmt: skip
# SuperGLUE: the same word in two sentences
WIC = superglue("relation", "WiC", "accuracy", NAMED, labels=TRUTH, format="wic")
