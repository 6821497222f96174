"""What the lab adds to Cloze."""

from cloze.core.plugins import Plugin, Row

_LAB = "cloze.labs.serving"

PLUGIN = Plugin(
    name="serving",
    summary="Ask finished models: labels, entities, answers, vectors; over HTTP, too.",
    rows={
        "commands": {
            "embed": Row(f"{_LAB}.commands:embed", help="Compute the embeddings of texts."),
            "classify": Row(
                f"{_LAB}.commands:classify", help="Classify texts with a fine-tuned checkpoint."
            ),
            "tag": Row(f"{_LAB}.commands:tag", help="Find the entities in texts."),
            "answer": Row(f"{_LAB}.commands:answer", help="Answer questions from a passage."),
            "score": Row(
                f"{_LAB}.commands:score", help="Compute the log-probability of sentences."
            ),
            "explain-mask": Row(
                f"{_LAB}.commands:explain_mask", help="Attribute a mask's word to its context."
            ),
            "serve": Row(
                f"{_LAB}.serve:serve", help="Serve models over HTTP, with a page to try them."
            ),
        },
        "verbs": {
            name: Row(f"{_LAB}.verbs:{name.upper().replace('-', '_')}")
            for name in ("classify", "answer", "tag", "embed", "score", "explain-mask")
        },
        "tools": {
            "answer": Row(f"{_LAB}.verbs:ANSWER_STAGE"),
            "classify": Row(f"{_LAB}.verbs:CLASSIFY_STAGE"),
            "tag": Row(f"{_LAB}.verbs:TAG_STAGE"),
            "score-texts": Row(f"{_LAB}.verbs:SCORE_STAGE"),
            "embed": Row(f"{_LAB}.verbs:EMBED_STAGE"),
            "explain-mask": Row(f"{_LAB}.verbs:EXPLAIN_MASK_STAGE"),
            "serve": Row(f"{_LAB}.worker:SERVE"),
        },
    },
)
