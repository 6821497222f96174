"""Questions in many languages; a split is a language. No torch: the command line imports it.

    cloze finetune --task xquad --data TASKS --checkpoint W/pretrain --out W/questions
    cloze evaluate --checkpoint W/questions --data TASKS --split de --out W/german

Both are trained on SQuAD 1.1 in English, as their papers do, and scored by SQuAD's normalization.
"""

from __future__ import annotations

from cloze.model.tasks.options import TaskSpec

# XQuAD's files (Artetxe et al. 2020): 1,190 questions of SQuAD's dev split, translated.
XQUAD_LANGUAGES = ("ar", "de", "el", "en", "es", "hi", "ro", "ru", "th", "tr", "vi", "zh")
# MLQA's (Lewis et al. 2020): other questions, on passages of each Wikipedia.
MLQA_LANGUAGES = ("ar", "de", "en", "es", "hi", "vi", "zh")
ENGLISH = {
    split: tuple(f"{folder}{split}-v1.1.json" for folder in ("", "squad/"))
    for split in ("train", "dev")
}


def _mlqa(part: str, passage: str, question: str) -> tuple[str, ...]:
    name = f"{part}-context-{passage}-question-{question}.json"
    return (f"{part}/{name}", name)


XQUAD = TaskSpec(
    kind="spans",
    options={
        "folder": "xquad",
        "files": {**ENGLISH, **{name: (f"xquad.{name}.json",) for name in XQUAD_LANGUAGES}},
    },
)
# Splits: `de` is the test split in German, `dev-de` the dev split, `de-en` has passages in German
# and questions in English.
MLQA = TaskSpec(
    kind="spans",
    options={
        "folder": "MLQA_V1",
        "files": {
            **ENGLISH,
            **{name: _mlqa("test", name, name) for name in MLQA_LANGUAGES},
            **{f"dev-{name}": _mlqa("dev", name, name) for name in MLQA_LANGUAGES},
            **{
                f"{passage}-{question}": _mlqa("test", passage, question)
                for passage in MLQA_LANGUAGES
                for question in MLQA_LANGUAGES
                if passage != question
            },
        },
    },
)
