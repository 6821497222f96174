"""What the lab adds to Cloze."""

from cloze.core.plugins import Plugin, Row

_LAB = "cloze.labs.serving"
_COMMANDS = {
    "embed": "Compute the embeddings of texts.",
    "classify": "Classify texts with a fine-tuned checkpoint.",
    "tag": "Find the entities in texts.",
    "answer": "Answer questions from a passage.",
    "score": "Compute the log-probability of sentences.",
}

PLUGIN = Plugin(
    name="serving",
    summary="Ask finished models: labels, entities, answers, vectors; over HTTP, too.",
    rows={
        "commands": {
            **{name: Row(f"{_LAB}.commands:{name}", help=text) for name, text in _COMMANDS.items()},
            "serve": Row(
                f"{_LAB}.serve:serve", help="Serve models over HTTP, with a page to try them."
            ),
        },
        "verbs": {
            name: Row(f"{_LAB}.verbs:{name.upper()}")
            for name in ("classify", "answer", "tag", "embed", "score")
        },
        "tools": {
            "answer": Row(f"{_LAB}.verbs:ANSWER_STAGE"),
            "classify": Row(f"{_LAB}.verbs:CLASSIFY_STAGE"),
            "tag": Row(f"{_LAB}.verbs:TAG_STAGE"),
            "score-texts": Row(f"{_LAB}.verbs:SCORE_STAGE"),
            "embed": Row(f"{_LAB}.verbs:EMBED_STAGE"),
            "serve": Row(f"{_LAB}.worker:SERVE"),
        },
    },
)
