"""What the lab adds to Cloze."""

from cloze.core.plugins import Plugin, Row

_LAB = "cloze.labs.before_bert"

PLUGIN = Plugin(
    name="before_bert",
    summary="ELMo, and static word vectors: word2vec, fastText and GloVe of a corpus.",
    rows={
        "commands": {
            "static-vectors": Row(
                f"{_LAB}.commands:static_vectors",
                help="Train word2vec, fastText or GloVe vectors of a corpus.",
            )
        },
        "stages": {
            "static-vectors": Row(
                f"{_LAB}.stages:STAGE", before="dataset", stands_for=("finetune.checkpoint",)
            )
        },
        "headings": {"static-vectors": Row(f"{_LAB}.commands:HEADINGS")},
        "families": {"elmo": Row(f"{_LAB}.elmo"), "static": Row(f"{_LAB}.static")},
        "objectives": {"bilm": Row(f"{_LAB}.bilm:BILM", before="distillation")},
        "vocabularies": {"words": Row(f"{_LAB}.stages:WORDS")},
    },
)
