"""Probes read what is in the states, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cloze
from cloze.core.errors import DataError, UsageError
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext
from cloze.flows.cli import main
from cloze.labs.inside.probe import token_states
from cloze.labs.inside.probes import Probes, Spans, fit, sampled, spans_of, standardize, word_states
from cloze.labs.inside.stages import PROBE, ProbeConfig
from cloze.model import checkpoint
from cloze.model.families.models import load_backbone
from cloze.model.tasks.encode import encode_words
from cloze.model.tasks.formats.columns import TaggedWords, read_columns
from cloze.model.tasks.options import TaggingOptions
from cloze.pipeline import tokenizer
from tests.tiny_models import write_checkpoint

SENTENCES = [
    ("the cat sat on the mat .", "DET NOUN VERB ADP DET NOUN PUNCT"),
    ("a dog walked in the park .", "DET NOUN VERB ADP DET NOUN PUNCT"),
    ("paris is the capital .", "NAME VERB DET NOUN PUNCT"),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    base = tmp_path_factory.mktemp("probe")
    return write_checkpoint(base / "checkpoint", base / "scratch")


@pytest.fixture(scope="module")
def treebank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("treebank")
    lines = []
    for words, tags in SENTENCES * 6:
        for number, (word, tag) in enumerate(zip(words.split(), tags.split(), strict=True), 1):
            head, relation = (number + 1, "det") if tag == "DET" else (number - 1, tag.lower())
            lines.append(f"{number}\t{word}\t_\t{tag}\t_\t_\t{head}\t{relation}\t_\t_\n")
        lines.append("\n")
    for split in ("train", "dev"):
        (base / f"{split}.conllu").write_text("".join(lines))
    return base


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe of 80 steps, enough for a few words."""
    for name, value in {"EPOCHS": 4, "EPOCH": 2560, "RATE": 0.05}.items():
        monkeypatch.setattr(f"cloze.labs.inside.probes.{name}", value)


def run(directory: str, tmp_path: Path, **config: Any) -> dict[str, Any]:
    build = BuildContext(
        path=str(tmp_path),
        inputs={"checkpoint": directory},
        execution=Execution(device="cpu"),
        fingerprint="",
    )
    with build.cleanup:
        return dict(PROBE.run(ProbeConfig(**config), build).summary)


@torch.inference_mode()
@pytest.mark.parametrize("family", ["bert", "albert", "modern", "deberta", "longformer", "gpt2"])
def test_word_states_are_those_of_embed(family: str, tmp_path: Path) -> None:
    """Also of words of several tokens, and of sentences in several windows."""
    path = write_checkpoint(tmp_path / "checkpoint", tmp_path / "scratch", family=family)
    loaded = checkpoint.load(path)
    encoder = load_backbone(loaded.model, loaded.state).encoder
    pieces = tokenizer.load(loaded.tokenizer)
    texts = ["the cats walked in paris .", "a dog"]
    samples = encode_words([text.split() for text in texts], pieces, 32)
    words = word_states(token_states(encoder, samples, torch.device("cpu")), samples)
    for layer in range(3):
        answers = cloze.load(path).batch("embed", texts, word_vectors=True, layers=(layer,))
        expected = [word["embedding"] for answer in answers for word in answer["words"]]
        assert words[:, layer].tolist() == [pytest.approx(own, abs=1e-5) for own in expected]


@torch.inference_mode()
def test_every_word_of_a_long_sentence_has_its_state_once(directory: str) -> None:
    loaded = checkpoint.load(directory)
    encoder = load_backbone(loaded.model, loaded.state).encoder
    pieces = tokenizer.load(loaded.tokenizer)
    sentences = [["the", "cats", "sat"], ["walked", "dogs"] * 9, ["park"]]
    samples = encode_words(sentences, pieces, 8)
    assert len(samples.windows) > 4
    words = word_states(token_states(encoder, samples, torch.device("cpu")), samples)
    assert len(words) == 22
    assert torch.isfinite(words).all()
    alone = encode_words(sentences[2:], pieces, 8)
    expected = word_states(token_states(encoder, alone, torch.device("cpu")), alone)
    assert words[-1] == pytest.approx(expected[0], abs=1e-5)


@pytest.mark.usefixtures("quick")
def test_a_probe_of_one_hot_states_is_always_right_and_one_of_noise_at_chance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"EPOCHS": 8, "RATE": 0.02}.items():
        monkeypatch.setattr(f"cloze.labs.inside.probes.{name}", value)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 600)
    features = torch.stack(
        [torch.eye(4)[labels], torch.from_numpy(rng.normal(size=(600, 4))).float()], dim=1
    )
    train, dev = features[:400].clone(), features[400:].clone()
    standardize(train, dev)
    assert train.mean(dim=0).abs().max() < 1e-6
    assert train.std(dim=0, correction=0) == pytest.approx(1, abs=1e-5)
    layers = np.array([[True, False], [False, True], [True, True]])
    own = np.tile(labels, (3, 1))
    for hidden in (None, 8):
        probes = Probes(layers, 4, 4, hidden, seed=1)
        found = fit(probes, (train, dev), (own[:, :400], own[:, 400:]), seed=1)
        right = (found == own[:, 400:]).mean(axis=1)
        assert right[0] == right[2] == 1
        assert right[1] < 0.4
        weights = probes.weights.detach()
        assert weights[:2].tolist() == [[1, 0], [0, 1]]
        assert weights[2, 0] > 0.7


@pytest.mark.usefixtures("quick")
def test_probes_learn_together_what_each_learns_alone() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, (2, 300))
    train = torch.from_numpy(rng.normal(size=(200, 2, 5))).float()
    dev = torch.from_numpy(rng.normal(size=(100, 2, 5))).float()
    layers = np.array([[True, False], [True, True]])
    splits = labels[:, :200], labels[:, 200:]
    together = fit(Probes(layers, 5, 3, None, 1), (train, dev), splits, 1)
    for number in (0, 1):
        part = slice(number, number + 1)
        own = splits[0][part], splits[1][part]
        alone = fit(Probes(layers[part], 5, 3, None, 1), (train, dev), own, 1)
        assert (alone[0] == together[number]).mean() > 0.98  # rounding


def test_control_labels_are_one_per_text_and_as_frequent_as_the_real_ones() -> None:
    texts = [str(number) for number in range(4000)]
    spans = Spans(bounds=np.zeros((8000, 1, 2), np.int64), labels=[""] * 8000, texts=texts * 2)
    control = spans.control_labels(np.array([0, 0, 0, 1, 1, 2]), seed=1)
    assert (control[:4000] == control[4000:]).all()
    assert np.bincount(control) / 8000 == pytest.approx([1 / 2, 1 / 3, 1 / 6], abs=0.03)
    assert (control != spans.control_labels(np.array([0, 0, 0, 1, 1, 2]), seed=2)).any()


def test_spans_of_words_entities_and_arcs(treebank: Path) -> None:
    words = [["Ada", "Lovelace", "met", "Paris"], ["it", "rained"]]
    tags = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "O"]]
    tagged = TaggedWords(words=words, tags=tags, scheme="BIO")
    found = spans_of(tagged, "entities")
    assert found.bounds.tolist() == [[[0, 2]], [[3, 4]]]
    assert found.labels == ("PER", "LOC")
    assert found.texts == ("Ada Lovelace", "Paris")
    states = torch.arange(6.0)[:, None, None]
    assert found.features(states).flatten().tolist() == [0.5, 3]
    assert spans_of(tagged, "words").bounds[:, 0, 0].tolist() == list(range(6))
    options = TaggingOptions(columns={"word": 1, "tag": 3}, scheme="plain")
    arcs = spans_of(read_columns(str(treebank), "dev", options, ""), "arcs")
    assert arcs.bounds[:3].tolist() == [[[0, 1], [1, 2]], [[1, 2], [0, 1]], [[2, 3], [1, 2]]]
    assert arcs.labels[:3] == ("det", "noun", "verb")
    second = arcs.bounds[arcs.texts.index("a")]
    assert second.tolist() == [[7, 8], [8, 9]]  # counted over sentences
    states = torch.arange(200.0)[:, None, None]
    assert arcs.features(states)[0].tolist() == [[0, 1]]  # dependent, head


def test_the_sample_has_whole_sentences(treebank: Path) -> None:
    options = TaggingOptions(columns={"word": 1, "tag": 3}, scheme="plain")
    read = read_columns(str(treebank), "dev", options, "")
    part = sampled(read, 40, 1)
    assert 33 < sum(map(len, part.words)) <= 40
    assert [list(words) for words in part.words] == [
        [part.lines[number][1] for number in numbers] for numbers in part.line_numbers
    ]
    assert sampled(read, 10**6, 1).words == read.words
    assert len(sampled(read, 1, 1)) == 1


@pytest.mark.usefixtures("quick")
def test_scores_of_layers_mixes_and_baselines(
    directory: str, treebank: Path, tmp_path: Path
) -> None:
    config = {"task": "ud-pos", "data": str(treebank), "hidden": 8}
    found = run(directory, tmp_path, **config)
    assert found == run(directory, tmp_path, **config)
    layers, mix, metrics = found["layers"], found["mix"], found["metrics"]
    assert [row["layer"] for row in layers] == [0, 1, 2]
    assert layers[0]["accuracy"] == 1  # words have one tag each
    for row in layers:
        assert row["selectivity"] == pytest.approx(row["accuracy"] - row["control"])
        assert {"hidden", "hidden_selectivity", "from_scratch", "macro_f1"} < row.keys()
    assert metrics["majority"] == pytest.approx(5 / 19)  # DET
    assert metrics["accuracy"] == layers[metrics["best_layer"]]["accuracy"]
    weights = np.array(mix["weights"])
    assert weights.sum() == pytest.approx(1, abs=1e-5)
    assert metrics["center_of_gravity"] == pytest.approx(weights @ [0, 1, 2], abs=1e-5)
    gains = np.diff(mix["scores"])
    if gains.sum() > 0:
        assert metrics["expected_layer"] == pytest.approx(gains @ [1, 2] / gains.sum())
    arcs = run(directory, tmp_path, **config, target="arcs", baselines=False)
    assert arcs["metric"] == "accuracy"
    assert arcs["examples"]["dev"] == (7 + 7 + 4) * 6  # a root has no arc
    assert "majority" not in arcs["metrics"]


@pytest.mark.usefixtures("quick")
def test_entities_are_scored_as_conlleval_does(directory: str, tmp_path: Path) -> None:
    lines = "the O\ncat B-ANIMAL\nsat O\n\nparis B-PLACE\nis O\n\n" * 20
    for split in ("train", "dev"):
        (tmp_path / f"{split}.txt").write_text(lines)
    found = run(directory, tmp_path, task="tagging", data=str(tmp_path))
    assert found["metric"] == "f1"
    assert found["metrics"]["f1"] == 1
    assert found["metrics"]["majority"] == 0  # O everywhere
    spans = run(directory, tmp_path, task="tagging", data=str(tmp_path), target="entities")
    assert spans["examples"] == {"train": 40, "dev": 40}
    assert spans["metrics"]["accuracy"] == 1
    with pytest.raises(DataError, match="target arcs needs CoNLL-U"):
        run(directory, tmp_path, task="tagging", data=str(tmp_path), target="arcs")


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"task": "sst2"}, "no task with tags of words"),
        ({"task": "ud-pos", "target": "entities"}, "has plain labels"),
        ({"options": {"context": "document"}}, "is not for probes"),
        ({"options": {"colums": {}}}, "colums"),
    ],
)
def test_what_no_probe_can_read_is_refused(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        ProbeConfig(**config)


def test_a_probe_needs_data(directory: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs data"):
        run(directory, tmp_path)


@pytest.mark.usefixtures("warm")
def test_the_command_prints_a_row_per_layer_and_draws(
    directory: str, treebank: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    svg = tmp_path / "curves.svg"
    arguments = ["probe", directory, "--task", "ud-pos", "--data", str(treebank), "--no-baselines"]
    assert main([*arguments, "--svg", str(svg), "--device", "cpu"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[-4].split()[:3] == ["layer", "accuracy", "macro"]
    assert [line.split()[0] for line in printed[-3:]] == ["0", "1", "2"]
    assert "control task" in svg.read_text()
    assert main(["probe", directory, "--task", "nothing"]) == 2
    assert main(["probe", directory, "--task", "ud-pos", "--data", str(tmp_path / "no")]) == 3
