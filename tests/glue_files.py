"""GLUE's nine tasks in files of a few lines, as its archive has them: folders, names, headers and
label names.
"""

from __future__ import annotations

from pathlib import Path

GOOD, BAD = ("a lovely warm film", "the cast is good"), ("an awful cold plot", "the film is dull")
ENTAILMENT = ("entailment", "not_entailment")
PAIRS = {  # folder: (columns of the two texts, of the label, labels, the test's id)
    "QQP": (("question1", "question2"), "is_duplicate", ("0", "1"), "id"),
    "QNLI": (("question", "sentence"), "label", ENTAILMENT, "index"),
    "RTE": (("sentence1", "sentence2"), "label", ENTAILMENT, "index"),
    "WNLI": (("sentence1", "sentence2"), "label", ("0", "1"), "index"),
}
TEST_ROWS = 4


def write_glue(directory: Path, train: int = 8, dev: int = 4) -> Path:
    """All of them, with test files of `TEST_ROWS` rows, and the diagnostic set below
    `diagnostic/`.
    """

    def table(name: str, header: list[str] | None, rows: list[list[str]]) -> None:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = ["\t".join(row) for row in ([header] if header else []) + rows]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    for split, count in (("train", train), ("dev", dev)):
        texts = [(BAD, GOOD)[i % 2][i // 2 % 2] + f" {i} ." for i in range(count)]
        table(
            f"CoLA/{split}.tsv",
            None,
            [["gj04", str(i % 2), "", text] for i, text in enumerate(texts)],
        )
        table(
            f"SST-2/{split}.tsv",
            ["sentence", "label"],
            [[text, str(i % 2)] for i, text in enumerate(texts)],
        )
        table(
            f"MRPC/{split}.tsv",
            ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"],
            [[str(i % 2), "1", "2", text, texts[-i]] for i, text in enumerate(texts)],
        )
        scored = [
            [str(i), text, texts[-i], f"{5 * (i % 3) / 2:.3f}"] for i, text in enumerate(texts)
        ]
        table(f"STS-B/{split}.tsv", ["index", "sentence1", "sentence2", "score"], scored)
        for folder, (columns, label, labels, _) in PAIRS.items():
            rows = [[str(i), text, texts[-i], labels[i % 2]] for i, text in enumerate(texts)]
            table(f"{folder}/{split}.tsv", ["id", *columns, label], rows)
        for name in ("train",) if split == "train" else ("dev_matched", "dev_mismatched"):
            ways = ("entailment", "neutral", "contradiction")
            rows = [[str(i), text, texts[-i], ways[i % 3]] for i, text in enumerate(texts)]
            table(f"MNLI/{name}.tsv", ["index", "sentence1", "sentence2", "gold_label"], rows)
    texts = [(BAD, GOOD)[i % 2][0] for i in range(TEST_ROWS)]
    singles = [[str(i), text] for i, text in enumerate(texts)]
    for folder in ("CoLA", "SST-2"):
        table(f"{folder}/test.tsv", ["index", "sentence"], singles)
    pairs = [[str(i), text, texts[-i]] for i, text in enumerate(texts)]
    for name in (
        "MNLI/test_matched",
        "MNLI/test_mismatched",
        "STS-B/test",
        "diagnostic/diagnostic",
    ):
        table(f"{name}.tsv", ["index", "sentence1", "sentence2"], pairs)
    table(
        "MRPC/test.tsv",
        ["index", "#1 ID", "#2 ID", "#1 String", "#2 String"],
        [[i, "1", "2", a, b] for i, a, b in pairs],
    )
    for folder, (columns, _, _, number) in PAIRS.items():
        table(f"{folder}/test.tsv", [number, *columns], pairs)
    return directory
