"""The card of a task's splits: what they have, what they share, and what tells the answer alone.

    examples -view-> columns of text and answers -> figures of a split, of two splits -> findings

A finding is a sentence about what a score may depend on. Its thresholds are strict, because it is
told before each fine-tuning.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cloze.core.errors import UsageError
from cloze.core.stages.stage import BuildContext, StageResult
from cloze.labs.task_card.stages import TaskCardConfig
from cloze.model import checkpoint
from cloze.model.tasks.files import write_json
from cloze.model.tasks.formats.choices import Choices
from cloze.model.tasks.formats.columns import TaggedWords
from cloze.model.tasks.formats.squad import SquadExamples
from cloze.model.tasks.formats.texts import LabelledTexts, ScoredTexts
from cloze.model.tasks.kinds.multilabel import LabelSets
from cloze.model.tasks.table import load_task
from cloze.model.tasks.task import Split, check_labelled
from cloze.pipeline import tokenizer

SIGMAS, GAIN = 4.0, 0.05  # standard errors and points between an accuracy and the usual one
FEWEST, MANY = 20, 0.05  # examples of a split or a part of it, and its share, below them no finding
SHIFT, LONGER = 0.15, 1.5  # between train and dev: points of a class's share, ratio of lengths
MOST_CLASSES, TOLD, READ = 50, 3, 20_000  # classes; findings before a training; examples of a rule
UNCUT = 1 << 30  # maximum tokens that no text has
WORD = re.compile(r"\w+")
KNOWN: tuple[type[Any], ...] = (
    *(LabelledTexts, LabelSets, ScoredTexts),
    *(Choices, TaggedWords, SquadExamples),
)
INPUTS = {
    "texts": "text", "text_pairs": "pair", "contexts": "context", "endings": "endings",
    "words": "words", "questions": "question",
}  # fmt: skip
ODDITIES = {
    "replacement characters (U+FFFD)": re.compile("\ufffd"),
    "bytes of a wrong encoding (Ã©, â€™)": re.compile("Ã[\x80-\xbf]|â€|Â[\x80-\xbf]"),
    "HTML entities or tags": re.compile(r"&(?:amp|lt|gt|quot|nbsp|#\d+);|</?(?:br|p|b|i)\s*/?>"),
    "control characters": re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]"),
    "invisible characters": re.compile("[\u200b-\u200f\u2028-\u202e\u2060\ufeff]"),
    r"escapes (\n, \u00e9)": re.compile(r"\\(?:[nt]\b|u[0-9a-fA-F]{4})"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Examples as columns of text, and answers as text.

    Attributes:
        columns: texts of each example by input; empty for a kind that has none of `INPUTS`.
        answers: answer of each example; None: unlabelled.
        classes: number of answers, entities or words by class; empty if there are no classes.
        candidates: endings of each example of a choice.
    """

    columns: Mapping[str, Sequence[str]]
    answers: Sequence[str] | None
    classes: Mapping[str, int]
    candidates: Sequence[Sequence[str]]

    @property
    def inputs(self) -> list[tuple[str, ...]]:
        return list(zip(*self.columns.values(), strict=True))

    @property
    def is_class(self) -> bool:
        """True if each answer is one of a few classes."""
        few = 2 <= len(self.classes) <= MOST_CLASSES
        return few and {*(self.answers or ())} <= self.classes.keys()


def view(examples: Any) -> View:
    """Return the view of examples; one without columns for kinds that are not `KNOWN`."""
    if not isinstance(examples, KNOWN):
        return View(columns={}, answers=None, classes={}, candidates=())
    columns = {
        name: [text if isinstance(text, str) else " ".join(text) for text in values]
        for attribute, name in INPUTS.items()
        if (values := getattr(examples, attribute, None))
    }
    answers: list[str] | None = None
    classes: Mapping[str, int] = {}
    candidates = getattr(examples, "endings", ())
    labels = getattr(examples, "labels", None)
    if hasattr(examples, "passage_of"):
        columns["passage"] = [examples.passages[place] for place in examples.passage_of]
        if examples.labelled:
            answers = [own[0].text if own else "" for own in examples.answers]
            classes = Counter("answer" if answer else "no answer" for answer in answers)
    elif getattr(examples, "tags", None) is not None:
        answers, classes = [" ".join(tags) for tags in examples.tags], examples.types()
    elif getattr(examples, "scores", None) is not None:
        answers = [f"{score:g}" for score in examples.scores]
    elif candidates and labels is not None:
        answers = [own[label] for own, label in zip(candidates, labels, strict=True)]
        classes = Counter(f"ending {label + 1}" for label in labels)
    elif hasattr(examples, "label_names") and labels is not None:
        names = [(examples.label_names[own],) if isinstance(own, int) else own for own in labels]
        answers = [", ".join(sorted(own)) for own in names]
        classes = Counter(name for own in names for name in own)
    return View(columns=columns, answers=answers, classes=classes, candidates=candidates)


def _answers(keys: Sequence[Any], own: View) -> dict[Any, Counter[str]]:
    found: dict[Any, Counter[str]] = {}
    for key, answer in zip(keys, own.answers or [""] * len(keys), strict=True):
        found.setdefault(key, Counter())[answer] += 1
    return found


def figures(own: View, lengths: Sequence[int], truncated: int | None) -> dict[str, Any]:
    """Return the figures of a split: classes by share, lengths, repeats, odd characters."""
    answers = _answers(own.inputs, own).values()
    odd = Counter(
        name for key in own.inputs for name, rule in ODDITIES.items() if any(map(rule.search, key))
    )
    total = sum(own.classes.values())
    names = {"median": 50, "p95": 95, "longest": 100}
    sizes = {name: float(np.percentile(lengths or [0], q)) for name, q in names.items()}
    return {
        "labels": "yes" if own.answers is not None else "none",
        "class": {name: own.classes[name] / total for name in sorted(own.classes)},
        "length": {"mean": float(np.mean(lengths or [0])), **sizes},
        "truncated": truncated,
        "repeats": sum(counts.total() - 1 for counts in answers),
        "repeats with several answers": sum(one.total() for one in answers if len(one) > 1),
        "constant": [name for name, texts in own.columns.items() if len({*texts}) < 2 < len(texts)],
        "odd": dict(odd),
    }


def shared(train: View, other: View) -> dict[str, dict[str, Any]]:
    """Return what another split shares with train: whole examples (`all`), and each column.

    Returns:
        by column: `examples` of the other split whose text train has; with labels also `same`,
            those whose answer is the most frequent one of train for it, `usual`, those with the
            most frequent answer among them, and `example`, the first text with another answer.
    """
    keys: dict[str, tuple[Sequence[Any], Sequence[Any]]] = {"all": (train.inputs, other.inputs)}
    if len(train.columns) > 1:
        keys |= {name: (own, other.columns[name]) for name, own in train.columns.items()}
    found: dict[str, dict[str, Any]] = {}
    for name, (known, own) in keys.items():
        answers = _answers(known, train)
        places = [place for place, key in enumerate(own) if key in answers]
        found[name] = {"examples": len(places)}
        if other.answers is not None:
            right = [other.answers[place] for place in places]
            seen = [answers[own[place]].most_common(1)[0][0] for place in places]
            unlike = [i for i, pair in enumerate(zip(seen, right, strict=True)) if len({*pair}) > 1]
            usual = max(Counter(right).values(), default=0)
            found[name] |= {"same": len(places) - len(unlike), "usual": usual}
            if unlike:
                found[name]["example"] = own[places[unlike[0]]]
    return found


def _measures(own: View) -> dict[str, Any]:
    """Return numbers of each example, fp64 [n, 1]: words of each text, the share that two share."""
    sets, found = [], dict[str, list[float]]()
    for name, texts in own.columns.items():
        words = [WORD.findall(text.lower()) for text in texts]
        found[f"length of {name}"] = [float(len(one)) for one in words]
        sets.append(list(map(set, words)))
    if len(sets) == 2:
        pairs = zip(*sets, strict=True)
        found["overlap of words"] = [len(a & b) / (min(len(a), len(b)) or 1) for a, b in pairs]
    return {name: np.array(values, dtype=float)[:, None] for name, values in found.items()}


def rules(train: View, dev: View) -> dict[str, float]:
    """Return the accuracy on dev of rules that read less than the task needs.

    The rules: a tree of four leaves on one number, the words of one text of two (naive Bayes), and,
    for a choice, its longest or shortest ending; `usual answer`: the most frequent one.
    """
    if dev.candidates and dev.answers:
        pairs = list(zip(dev.candidates, dev.answers, strict=True))
        found = {f"{name} ending": sum(rule(own, key=len) == right for own, right in pairs)
                 for name, rule in (("longest", max), ("shortest", min))}  # fmt: skip
        found["usual answer"] = max(dev.classes.values())
        return {name: count / len(pairs) for name, count in found.items()}
    if not train.is_class or not train.columns:
        return {}
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.naive_bayes import MultinomialNB
    from sklearn.pipeline import make_pipeline
    from sklearn.tree import DecisionTreeClassifier

    step = slice(None, None, max(1, len(train.answers or ()) // READ))
    own, other = (train.answers or ())[step], dev.answers or ()
    numbers, leaf = _measures(dev), max(5, len(own) // 50)
    models: dict[str, tuple[Any, Any, Any]] = {}
    for name, values in _measures(train).items():
        tree = DecisionTreeClassifier(max_leaf_nodes=4, min_samples_leaf=leaf, random_state=0)
        models[name] = (tree, values[step], numbers[name])
    for name, texts in train.columns.items() if len(train.columns) == 2 else ():
        if any(map(WORD.search, texts[step])):
            bayes = make_pipeline(CountVectorizer(token_pattern=r"\w+"), MultinomialNB())
            models[f"words of {name}"] = (bayes, texts[step], dev.columns[name])
    usual = other.count(Counter(own).most_common(1)[0][0]) / max(1, len(other))
    scores = {name: model.fit(known, own).score(new, other)
              for name, (model, known, new) in models.items()}  # fmt: skip
    return {**scores, "usual answer": usual}


def _differs(score: float, usual: float, count: int) -> bool:
    error = math.sqrt(max(usual * (1 - usual), 0.01) / max(count, 1))
    return abs(score - usual) > max(GAIN, SIGMAS * error)


def findings(splits: Mapping[str, Any], *, is_class: bool) -> Iterator[str]:
    """Iterate over sentences about what a score may depend on, the gravest first."""
    train, dev = splits["train"], splits["dev"]
    total = dev["examples"]
    if min(total, train["examples"]) < FEWEST:
        return
    for name, entry in dev["shared"].items():
        same, count = entry.get("same"), entry["examples"]
        if same is None or count < max(FEWEST, MANY * total):
            continue
        what = "" if name == "all" else f"{name} of "
        told = f"{what}{count:,} of {total:,} dev examples also in train"
        if is_class and _differs(same / count, entry["usual"] / count, count):
            trap = "trap" if same < entry["usual"] else "leak"
            yield f"{told}; the label there is right for {same / count:.0%} of them, a {trap}"
        elif name == "all" and count > 2 * MANY * total:
            yield f"{told}; {count - same:,} with another answer"
    usual = dev["rules"].get("usual answer", 0)
    for name, score in dev["rules"].items():
        if score > usual and _differs(score, usual, total):
            yield f"{name} alone is right for {score:.0%} of dev (usual answer: {usual:.0%})"
    for name, share in dev["class"].items():
        known = train["class"].get(name, 0)
        if not known or abs(known - share) > SHIFT:
            yield f"class {name} is {known:.0%} of train and {share:.0%} of dev"
    medians = [split["length"]["median"] for split in (train, dev)]
    if max(medians) > LONGER * min(medians):
        yield f"the median lengths are {medians[0]:g} in train, {medians[1]:g} in dev"
    cut = {name: (own["truncated"] or 0) / max(1, own["examples"]) for name, own in splits.items()}
    if max(cut.values()) > MANY:
        shares = " and ".join(f"{share:.0%} of {name}" for name, share in cut.items())
        yield f"{shares} are truncated"
    for name, split in splits.items():
        if (several := split["repeats with several answers"]) > MANY * split["examples"]:
            yield f"{several:,} of {name} are repeats with several answers"
        if split["constant"]:
            yield f"{' and '.join(split['constant'])} is the same in all of {name}"


def compare(views: Mapping[str, View], splits: Mapping[str, dict[str, Any]]) -> list[str]:
    """Add to the figures of each split what it shares with train, and return the findings."""
    train = views["train"]
    for name in views.keys() - {"train"}:
        splits[name]["shared"] = shared(train, views[name])
    splits["dev"]["rules"] = rules(train, views["dev"])
    return list(findings(splits, is_class=train.is_class))


def before_training(train: Split, dev: Split) -> list[str]:
    """Return the line before a fine-tuning on one task: the gravest findings, if there are any."""
    views, splits = {}, {}
    for name, split in (("train", train), ("dev", dev)):
        views[name] = own = view(split.examples)
        numbers = figures(own, split.samples.lengths.tolist(), split.samples.truncated)
        splits[name] = {"examples": len(split.examples), **numbers}
    found = compare(views, splits)[:TOLD]
    return [f"task-card: {'; '.join(found)}"] if found else []


def run(config: TaskCardConfig, build: BuildContext) -> StageResult:
    """Write `card.json`: the card of a task's data.

    Returns:
        summary: `task`; `unit` of lengths, tokens or words; `max_length`, None without a
            tokenizer; `splits`, figures by split; `findings`, sentences.

    Raises:
        UsageError: the data is not given.
        DataError: data, checkpoint or tokenizer is missing or damaged, or a split has no labels.
    """
    if config.data is None:
        raise UsageError(f"task-card of {config.task} needs data (found none); name its directory")
    task, pieces = load_task(config.task, config.options), None
    most = config.max_length or task.max_length
    if path := build.inputs.get("checkpoint"):
        loaded = checkpoint.load_input(build, path)
        pieces = tokenizer.load(loaded.tokenizer)
        most = min(most, loaded.model.max_position_embeddings)
    elif path := build.inputs.get("vocab"):
        pieces = tokenizer.load(path)
    views, splits, metadata = dict[str, View](), dict[str, dict[str, Any]](), None
    for name in config.splits():
        build.report.progress(len(splits), None, "splits", {"step": name})
        examples = task.read(config.data, name, None)
        if name != "test":
            check_labelled(examples, name)
        metadata = metadata or task.metadata(examples)
        views[name], truncated = view(examples), None
        lengths = [len(" ".join(key).split()) for key in views[name].inputs]
        if pieces is not None:
            aligned = task.align_labels(examples, metadata)
            lengths = task.encode(aligned, pieces, UNCUT).lengths.tolist()
            truncated = task.encode(aligned, pieces, most).truncated
        counts = {"examples": len(examples), "dropped": dict(examples.dropped)}
        splits[name] = {**counts, **figures(views[name], lengths, truncated)}
        build.counters[f"read/{name}"] += len(examples) + sum(examples.dropped.values())
    unit, limit = ("words", None) if pieces is None else ("tokens", most)
    about = {"task": task.name, "unit": unit, "max_length": limit}
    summary = {**about, "findings": compare(views, splits), "splits": splits}
    write_json(build.file("card.json"), summary)
    return StageResult(rows=sum(own["examples"] for own in splits.values()), summary=summary)
