"""What the lab adds to Cloze."""

from cloze.core.plugins import Plugin, Row

_LAB = "cloze.labs.retrieval"

PLUGIN = Plugin(
    name="retrieval",
    summary="Search a corpus, answer from it, and pretrain with its passages (REALM).",
    rows={
        "commands": {
            "index": Row(
                f"{_LAB}.commands:index", help="Cut a corpus into passages, and index their words."
            ),
            "tag-corpus": Row(
                f"{_LAB}.commands:tag_corpus", help="Find the named entities and dates of a corpus."
            ),
            "search": Row(
                f"{_LAB}.commands:search", help="Find passages of a corpus, with their sources."
            ),
            "answer-corpus": Row(
                f"{_LAB}.commands:answer_corpus",
                help="Answer questions from a corpus, with sources.",
            ),
        },
        "stages": {
            "index": Row(f"{_LAB}.stages:INDEX", before="vocab", stands_for=("vectors.corpus",)),
            "entities": Row(f"{_LAB}.stages:ENTITIES", command=False, before="vocab"),
        },
        "tools": {
            "search": Row(f"{_LAB}.stages:SEARCH"),
            "answer-corpus": Row(f"{_LAB}.stages:ANSWER_CORPUS"),
        },
        "verbs": {
            "search": Row(f"{_LAB}.stages:PREDICTOR"),
            "answer-corpus": Row(f"{_LAB}.stages:ANSWERS"),
        },
        "headings": {
            "index": Row(f"{_LAB}.commands:OF_INDEX"),
            "entities": Row(f"{_LAB}.commands:OF_ENTITIES"),
        },
        "masking_rules": {"salient": Row(f"{_LAB}.dataset_rows:SALIENT", before="none")},
        "recipes": {"realm": Row(f"{_LAB}.dataset_rows:realm")},
        "companions": {"retrieval": Row(f"{_LAB}.realm_options:COMPANION")},
        "task_kinds": {"retrieval": Row(f"{_LAB}.tasks:KIND")},
        "tasks": {
            "title-retrieval": Row(f"{_LAB}.tasks:TITLES"),
            "inverse-cloze": Row(f"{_LAB}.tasks:INVERSE_CLOZE"),
            "squad-retrieval": Row(f"{_LAB}.tasks:SQUAD"),
            "retrieval": Row(f"{_LAB}.tasks:RETRIEVAL"),
        },
    },
)
