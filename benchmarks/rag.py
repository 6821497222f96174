"""RAG beside closed-book and extractive answers, on facts that only the passages tell.

    python -m benchmarks.rag W/rag [--people 720] [--epochs 8] [--seeds 1]

Each of some invented people has an article of two sentences. Models are asked about some people in
training, and then about the others, whose articles are in the index. All are pretrained on the
articles for as many steps, and then read the same questions as often. The retriever is tuned on the
same questions.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np

from cloze.core.storage import read_tsv
from cloze.model.tasks.metrics import answer_f1, exact_match

SYLLABLES = [one + two for one in "bdfgklmnprstvz" for two in "aeiou"]
# Relation: sentence with name and value, question with name.
RELATIONS = {
    "home": ("{} lives in the {} .", "where does {} live ?"),
    "work": ("{} works for the {} .", "who employs {} ?"),
}


def invented(draw: random.Random, count: int) -> list[str]:
    """Return distinct words of two or three syllables."""
    words: dict[str, None] = {}
    while len(words) < count:
        words["".join(draw.choices(SYLLABLES, k=draw.randint(2, 3)))] = None
    return list(words)


def write_data(base: Path, people: int) -> None:
    """Write articles, and questions about them for four kinds of tasks."""
    draw = random.Random(7)
    words = iter(invented(draw, 140))
    first, last = ([next(words) for _ in range(30)] for _ in range(2))
    ones, twos = (
        {relation: [next(words) for _ in range(20)] for relation in RELATIONS} for _ in range(2)
    )
    names = draw.sample([f"{one} {two}" for one in first for two in last], people)
    files: dict[str, list[object]] = {}
    for number, name in enumerate(names):
        values = {
            relation: f"{draw.choice(ones[relation])} {draw.choice(twos[relation])}"
            for relation in RELATIONS
        }
        facts = [(name, values[relation]) for relation in RELATIONS]
        sentences = [
            RELATIONS[relation][0].format(*fact)
            for relation, fact in zip(RELATIONS, facts, strict=True)
        ]
        draw.shuffle(sentences)
        text = " ".join(sentences)
        files.setdefault("facts", []).append({"title": name, "text": text})
        split = "dev" if number % 6 == 0 else "train"
        questions = []
        for relation, (_, question) in RELATIONS.items():
            asked, answer = question.format(name), values[relation]
            row = {"query": asked, "passage": text, "text": asked, "label": answer}
            files.setdefault(f"qa/{split}", []).append(row)
            place = {"text": answer, "answer_start": text.index(answer)}
            own = {"id": f"{number}-{relation}", "question": asked, "answers": [place]}
            questions.append(own)
        article = {"title": name, "paragraphs": [{"context": text, "qas": questions}]}
        files.setdefault(f"squad/{split}-v1.1", []).append(article)
    for name, rows in files.items():
        path = base / f"{name}.{'json' if 'squad' in name else 'jsonl'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(row) for row in rows]
        content = f'{{"data": [{", ".join(lines)}]}}' if "squad" in name else "\n".join(lines)
        path.write_text(content + "\n", encoding="utf-8")


def cloze(base: Path, command: str) -> None:
    """Run a `cloze` command in `base`; finished artifacts are kept."""
    subprocess.run(
        [sys.executable, "-m", "cloze", "--quiet", *command.split()], cwd=base, check=True
    )


def measured(pairs: list[tuple[str, str]]) -> str:
    """Return exact match with its 95 % interval, and F1, of answers and right answers."""
    exact = np.array([exact_match(*pair) for pair in pairs])
    margin = 1.96 * exact.std() / len(exact) ** 0.5
    f1 = np.mean([answer_f1(*pair) for pair in pairs])
    return f"{exact.mean():.3f} ± {margin:.3f} | {f1:.3f}"


def written(base: Path, out: str) -> list[tuple[str, str]]:
    """Return the dev answers of a fine-tuning and the right ones."""
    rows = read_tsv(str(base / out / "predictions.tsv"))
    return [(row["prediction"], row["label"]) for row in rows]


def extracted(base: Path, reader: str, corpus: str, passages: int) -> list[tuple[str, str]]:
    """Return the answers of `cloze answer-corpus` to the dev questions, and the right ones."""
    rows = [json.loads(line) for line in (base / "qa/dev.jsonl").read_text().splitlines()]
    asked = "".join(json.dumps({"question": row["text"]}) + "\n" for row in rows)
    (base / "questions.jsonl").write_text(asked, encoding="utf-8")
    out = f"{reader}-{corpus}.jsonl"
    cloze(
        base,
        f"answer-corpus {reader} --file questions.jsonl --jsonl --corpus {corpus} --passages {passages}"
        f" --out {out}",
    )
    answers = [json.loads(line)["answer"] for line in (base / out).read_text().splitlines()]
    return [(answer, row["label"]) for answer, row in zip(answers, rows, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", type=Path)
    for name, value in (("people", 720), ("epochs", 8), ("seeds", 1), ("passages", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    own = parser.parse_args()
    base: Path = own.base
    if not (base / "qa").exists():
        write_data(base, own.people)
    keep = "--dedup none --minimum-words 1 --minimum-characters 1 --heldout-fraction 0.01"
    cloze(base, f"corpus --source jsonl=facts.jsonl {keep} --out corpus")
    cloze(base, "vocab --corpus corpus --size 400 --lowercase --out vocab")
    cloze(base, "index --corpus corpus --out index")
    cloze(base, "dataset --corpus corpus --tokenizer vocab --recipe roberta --length 32 --out rows")
    print("| | seed | exact match, 95 % | F1 |\n|---|---|---|---|", flush=True)
    for seed in range(1, own.seeds + 1):
        often = f"--threads 1 --seed {seed} --learning-rate 2e-3"
        for model in ("bart-tiny --objective token-masking", "bert-tiny"):
            cloze(
                base,
                f"pretrain --dataset rows --model {model} --steps 300 --global-batch 32 {often}"
                f" --out {model[:4]}-{seed}",
            )
        tune = f"finetune --set baselines=false {often} --epochs"
        cloze(
            base,
            f"{tune} 4 --checkpoint bert-{seed} --task retrieval --data qa --max-length 32"
            f" --out retriever-{seed}",
        )
        vectors = f"vectors-{seed}"
        cloze(base, f"embed-corpus --corpus index --checkpoint retriever-{seed} --out {vectors}")
        retrieve = f"--retrieve {vectors} --set options.passages={own.passages}"
        ways = {
            "closed book": "",
            "RAG-Sequence": f"{retrieve} --set options.marginal=sequence",
            "RAG-Token": f"{retrieve} --set options.marginal=token",
        }
        for name, options in ways.items():
            out = f"{name.lower().replace(' ', '-')}-{seed}"
            cloze(
                base,
                f"{tune} {own.epochs} --checkpoint bart-{seed} --task text-to-text --data qa"
                f" --max-length 24 --set options.target_length=8 {options} --out {out}",
            )
            print(f"| {name} | {seed} | {measured(written(base, out))} |", flush=True)
        cloze(
            base,
            f"{tune} {own.epochs} --checkpoint bert-{seed} --task squad --data squad"
            f" --max-length 64 --out reader-{seed}",
        )
        for corpus, how in ((vectors, "words and vectors"), ("index", "words")):
            found = extracted(base, f"reader-{seed}", corpus, own.passages)
            print(f"| extractive, found by {how} | {seed} | {measured(found)} |", flush=True)


if __name__ == "__main__":
    main()
