"""RAG beside closed-book and extractive answers, on facts that only the passages tell.

    python -m benchmarks.rag W/rag [--people 1200] [--epochs 16] [--seeds 1]

Each of some invented people has an article of two sentences. Models are asked about some people in
training, and then about the others, whose articles are in the index. All read the same questions
as often, with the same vocabulary, width and layers; the retriever is tuned on the same questions.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np

from cloze.model.tasks.metrics import answer_f1, exact_match
from cloze.model.tasks.predict import read_predictions

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
    words = iter(invented(draw, 280))
    first, last = ([next(words) for _ in range(60)] for _ in range(2))
    ones, twos = (
        {relation: [next(words) for _ in range(40)] for relation in RELATIONS} for _ in range(2)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", type=Path)
    parser.add_argument("--people", type=int, default=1200)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--passages", type=int, default=3)
    own = parser.parse_args()
    base: Path = own.base
    if not (base / "qa").exists():
        write_data(base, own.people)
    keep = "--dedup none --minimum-words 1 --minimum-characters 1 --heldout-fraction 0.01"
    cloze(base, f"corpus --source jsonl=facts.jsonl {keep} --out corpus")
    cloze(base, "vocab --corpus corpus --size 700 --lowercase --out vocab")
    cloze(base, "index --corpus corpus --out index")
    new = "finetune --from-scratch --tokenizer vocab --warmup-share 0.1 --set baselines=false"
    new += " --set dropout=0.0 --threads 1 --epochs {epochs} --learning-rate {rate} --seed {seed}"
    asked = [json.loads(line) for line in (base / "qa/dev.jsonl").read_text().splitlines()]
    questions = "".join(json.dumps({"question": row["text"]}) + "\n" for row in asked)
    (base / "questions.jsonl").write_text(questions, encoding="utf-8")
    print("| | seed | exact match | F1 |\n|---|---|---|---|", flush=True)
    for seed in range(1, own.seeds + 1):
        how = new.format(epochs=own.epochs, rate="1e-3", seed=seed)
        short = new.format(epochs=4, rate="1e-3", seed=seed)
        cloze(base, f"{short} --model bert-tiny --task retrieval --data qa --out retriever-{seed}")
        cloze(
            base,
            f"embed-corpus --corpus index --checkpoint retriever-{seed} --out vectors-{seed}",
        )
        retrieve = f"--retrieve vectors-{seed} --set options.passages={own.passages}"
        ways = {
            "closed-book": "",
            "RAG-Sequence": f"{retrieve} --set options.marginal=sequence",
            "RAG-Token": f"{retrieve} --set options.marginal=token",
        }
        for name, options in ways.items():
            out = f"{name.lower()}-{seed}"
            cloze(
                base,
                f"{how} --model t5-tiny --task text-to-text --data qa --max-length 32 {options}"
                f" --set options.target_length=8 --out {out}",
            )
            rows = read_predictions(str(base / out / "predictions.tsv"))
            pairs = [(row["prediction"], row["label"]) for row in rows]
            print(f"| {name} | {seed} | {measured(pairs)} |", flush=True)
        cloze(base, f"{how} --model bert-tiny --task squad --data squad --out reader-{seed}")
        for by in ("vectors", "index"):
            out = f"answers-{by}-{seed}.jsonl"
            corpus = f"vectors-{seed}" if by == "vectors" else "index"
            cloze(
                base,
                f"answer reader-{seed} --file questions.jsonl --jsonl --corpus {corpus}"
                f" --passages {own.passages} --out {out}",
            )
            lines = (base / out).read_text(encoding="utf-8").splitlines()
            found = [json.loads(line)["answer"] for line in lines]
            pairs = [(one, row["label"]) for one, row in zip(found, asked, strict=True)]
            print(f"| extractive, passages by {by} | {seed} | {measured(pairs)} |", flush=True)


if __name__ == "__main__":
    main()
