"""What the lab adds to Cloze."""

from cloze.core.plugins import Plugin, Row

LAB = "cloze.labs.seq2seq"
# T5's table (Raffel et al., 2020, Table 3), then BART's transformations (Lewis et al., 2020).
OBJECTIVES = (
    *("prefix-lm", "bert-style", "deshuffling", "mass-style", "replace-spans", "drop-tokens"),
    *("random-spans", "token-masking", "token-deletion", "infilling", "sentence-permutation"),
    *("document-rotation", "bart"),
)
TASKS = (
    *("text-to-text", "translation", "summarization", "sst2-text", "cola-text"),
    *("nq-open", "webq", "trec"),
)


def attribute(name: str) -> str:
    """Return the name of a row as that of its attribute: prefix-lm, PREFIX_LM."""
    return name.replace("-", "_").upper()


PLUGIN = Plugin(
    name="seq2seq",
    summary="Models that write a text: GPT-2, T5, BART, the Transformer, RAG.",
    rows={
        "families": {
            "gpt2": Row(f"{LAB}.gpt2", before="spanbert"),
            **{name: Row(f"{LAB}.{name}") for name in ("t5", "bart", "transformer")},
        },
        "objectives": {
            name: Row(f"{LAB}.denoising:{attribute(name)}", before="distillation")
            for name in OBJECTIVES
        },
        "task_kinds": {
            "text-to-text": Row(f"{LAB}.stages:TASK_KIND", before="tagging"),
            "open-questions": Row(f"{LAB}.stages:OPEN_QUESTIONS_KIND", before="tagging"),
        },
        "task_formats": {"open-questions": Row(f"{LAB}.open_questions:records")},
        "tasks": {name: Row(f"{LAB}.stages:{attribute(name)}") for name in TASKS},
        "verbs": {"generate": Row(f"{LAB}.stages:VERB")},
        "tools": {"generate": Row(f"{LAB}.stages:STAGE")},
        "commands": {
            "generate": Row(
                f"{LAB}.command:GENERATE",
                help="Continue a text, or write one for it (encoder-decoder).",
            )
        },
    },
)
