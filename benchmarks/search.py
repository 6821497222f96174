"""Search: quality on the questions of SQuAD's dev set, and time and memory by number of passages.

    python -m benchmarks.search --squad SHARED/tasks/squad [--index W/index] [--vectors W/vectors]
    python -m benchmarks.search --reader W/squad --index W/index --questions FILE [--limit N]

Quality: each of the 10,570 questions searches the 2,067 passages; its own is the relevant one.
`bm25s` and scikit-learn's TF-IDF are rows if they are installed. Time: the first 200 questions
search the index, one after the other, in a process of its own.

Answers: `cloze answer-corpus` with a reader, for questions without their passages: a SQuAD file,
or JSON lines of `question` and `answers`. Of up to 20 questions each answer is shown.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

QUESTIONS = 200


def squad(directory: Path) -> tuple[list[str], list[str], list[int]]:
    """Return passages, questions, and the passage of each question."""
    passages: list[str] = []
    questions, relevant = [], []
    content = json.loads((directory / "dev-v1.1.json").read_text(encoding="utf-8"))
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            passages.append(paragraph["context"])
            for qa in paragraph["qas"]:
                questions.append(qa["question"])
                relevant.append(len(passages) - 1)
    return passages, questions, relevant


def quality(name: str, scores: Callable[[str], Any], questions: list[str], of: list[int]) -> None:
    """Print recall and nDCG@10; ties count against the relevant passage."""
    begin, ranks = time.perf_counter(), []
    for question, passage in zip(questions, of, strict=True):
        own = scores(question)
        ranks.append(int((own >= own[passage]).sum()))
    seconds, array = time.perf_counter() - begin, np.array(ranks)
    gain = np.where(array <= 10, 1 / np.log2(array + 1), 0).mean()
    recalls = " | ".join(f"{(array <= k).mean():.3f}" for k in (1, 5, 20))
    print(f"| {name} | {recalls} | {gain:.3f} | {1000 * seconds / len(of):.2f} |", flush=True)


def compare(passages: list[str], questions: list[str], of: list[int]) -> None:
    from cloze.labs.retrieval.passages import PassageIndex, words_of_text

    print("| | recall@1 | @5 | @20 | nDCG@10 | ms a question |\n|---|---|---|---|---|---|")
    index = PassageIndex.of_texts(passages)
    quality("BM25 of `cloze index`", index.scores, questions, of)
    if importlib.util.find_spec("bm25s"):
        import bm25s

        other = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
        other.index([words_of_text(text) for text in passages], show_progress=False)
        quality("bm25s", lambda text: other.get_scores(words_of_text(text)), questions, of)
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(sublinear_tf=True, tokenizer=words_of_text, token_pattern=None)
    matrix = vectorizer.fit_transform(passages)
    quality(
        "TF-IDF of scikit-learn",
        lambda text: (matrix @ vectorizer.transform([text]).T).toarray()[:, 0],
        questions,
        of,
    )


TIMED = """
import json, resource, sys, time
from cloze.labs.retrieval.search import Searcher
questions, clock = json.load(sys.stdin), getattr(time, sys.argv[3])
searcher = Searcher(sys.argv[1], sys.argv[2])
searcher.search(questions[:3], 10)
times = []
for question in questions:
    begin = clock()
    searcher.search([question], 10)
    times.append(1000 * (clock() - begin))
times.sort()
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([len(searcher.index), times[len(times) // 2], times[-2], memory]))
"""


def timing(path: str, by: str, questions: list[str], clock: str = "perf_counter") -> None:
    done = subprocess.run(
        [sys.executable, "-c", TIMED, path, by, clock], input=json.dumps(questions[:QUESTIONS]),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    passages, median, high, memory = json.loads(done.stdout.splitlines()[-1])
    print(f"| {by} | {passages:,} | {median:.1f} | {high:.1f} | {memory:,.0f} |", flush=True)


def questions_of(path: Path) -> list[tuple[str, list[str]]]:
    """Return questions and their right answers, of a SQuAD file or of JSON lines."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        rows = map(json.loads, text.splitlines())
        return [(row["question"], row["answers"]) for row in rows]
    return [
        (qa["question"], [answer["text"] for answer in qa["answers"]])
        for article in json.loads(text)["data"]
        for paragraph in article["paragraphs"]
        for qa in paragraph["qas"]
    ]


def answer(reader: str, index: str, questions: list[tuple[str, list[str]]], passages: int) -> None:
    """Print exact match, F1, and the share of questions with an answer in a retrieved passage."""
    from cloze.labs.retrieval.search import CorpusAnswers
    from cloze.labs.retrieval.stages import AnswerCorpusConfig
    from cloze.model.tasks.metrics import answer_f1, exact_match, normalize_answer

    config = AnswerCorpusConfig(
        requests=({"question": ""},), corpus=index, passages=passages, top_k=1
    )
    predictor, rows = CorpusAnswers(reader, config), []
    for begin in range(0, len(questions), 16):
        group = questions[begin : begin + 16]
        encoded = predictor.encode([(question, None) for question, _ in group])
        for (question, right), found, reading in zip(
            group, predictor.answer(encoded), encoded[1], strict=True
        ):
            texts = [normalize_answer(passage.text) for passage in reading.passages]
            retrieved = any(normalize_answer(own) in text for own in right for text in texts)
            exact = max(exact_match(found["answer"], own) for own in right)
            f1 = max(answer_f1(found["answer"], own) for own in right)
            rows.append((exact, f1, float(retrieved)))
            if len(questions) <= 20:
                source = found["passage"] or {"title": "", "url": "", "licence": ""}
                print(
                    f"| {question} | {found['answer']} | {'yes' if exact else 'no'} | "
                    f"{'yes' if retrieved else 'no'} | {source['title']} | {source['url']} | "
                    f"{source['licence']} |",
                    flush=True,
                )
    exact, f1, recall = np.mean(rows, axis=0)
    print(
        f"{len(rows)} questions, {passages} passages: exact match {exact:.3f}, F1 {f1:.3f}, "
        f"an answer among the retrieved {recall:.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--squad", type=Path)
    parser.add_argument("--reader")
    parser.add_argument("--questions", type=Path)
    parser.add_argument("--passages", type=int, default=10)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--index", action="append", default=[])
    parser.add_argument("--vectors", action="append", default=[])
    arguments = parser.parse_args()
    if arguments.reader:
        asked = questions_of(arguments.questions)[: arguments.limit]
        for path in [*arguments.index, *arguments.vectors]:
            answer(arguments.reader, path, asked, arguments.passages)
        return
    passages, questions, of = squad(arguments.squad)
    compare(passages, questions, of)
    if arguments.index or arguments.vectors:
        print("\n| by | passages | p50 ms | p99 ms | process, MB |\n|---|---|---|---|---|")
    for path in arguments.index:
        timing(path, "bm25", questions)
    for path in arguments.vectors:
        timing(path, "dense", questions)
        timing(path, "both", questions)


if __name__ == "__main__":
    main()
