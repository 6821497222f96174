"""score: pseudo-log-likelihoods are what a plain loop gives, and minimal pairs are judged by them,
ties at half.
"""

from __future__ import annotations

import json
import typing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.modules.module import register_module_forward_pre_hook

from cloze.core.errors import DataError, UsageError
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext
from cloze.model import checkpoint
from cloze.model.families.models import load_model
from cloze.model.layers.heads import VocabularyHead
from cloze.model.tasks.formats.contrasts import Contrast, read_contrasts
from cloze.model.tasks.metrics import bounds
from cloze.model.use.configs import ScoreConfig
from cloze.model.use.masked_copies import Mask, mask_sentences, masks, scoring_batches
from cloze.model.use.scorer import SentenceScorer
from cloze.model.use.scoring import correct, mean_accuracy, resampled_means
from cloze.model.use.stages import SCORE
from cloze.pipeline import tokenizer
from tests.tiny_models import TRANSFORMERS, tiny_config, write_checkpoint, write_classifier

TEXTS = [
    "the cat sat on the mat.",
    "walking dogs walked in paris",
    "a",
    "the cats ran",
    "the cat sat on the mat.",
    "zebra",
]
FIELDS = ("sentence_good", "sentence_bad", "UID", "pairID", "linguistics_term", "field")
ROWS = [
    ("the cats ran.", "the cats runs.", "agreement", "0", "number", "morphology"),
    ("a dog sat.", "a dogs sat.", "agreement", "1", "number", "morphology"),
    ("the cat walked.", "the cat walked.", "island", "0", "extraction", "syntax"),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    base = tmp_path_factory.mktemp("score")
    return write_checkpoint(base / "checkpoint", base / "scratch")


@torch.inference_mode()
def plain(path: str, text: str, mask: Mask) -> float:
    """One piece after the other, logits at every position."""
    loaded = checkpoint.load(path)
    pieces = tokenizer.load(loaded.tokenizer)
    model = load_model(loaded.model, loaded.state)
    inner = pieces.encode_batch([text])[0]
    ids = [pieces.special.cls, *inner, pieces.special.sep]
    opens = [place == 0 or bool(pieces.word_start[token]) for place, token in enumerate(inner)]
    total = 0.0
    for place in range(len(inner)):
        begin = max(at for at in range(place + 1) if opens[at])
        end = next((at for at in range(place + 1, len(inner)) if opens[at]), len(inner))
        hidden = {"token": [place], "whole-word": range(begin, end), "word-l2r": range(place, end)}[
            mask
        ]
        copy = torch.tensor([ids])
        copy[0, [at + 1 for at in hidden]] = pieces.special.mask
        batch = {
            "input_ids": copy,
            "token_type_ids": 0 * copy,
            "masked_positions": torch.arange(len(ids)),
        }
        logits = model(batch)["mlm_logits"]
        total += float(logits[place + 1].log_softmax(-1)[inner[place]])
    return total


FILLERS = [  # of masks
    family
    for family in TRANSFORMERS
    if not {"lm", "seq2seq"} & tiny_config(family).heads.keys() and family != "xlnet"
]


@pytest.mark.parametrize("family", FILLERS)
def test_scores_are_those_of_a_plain_loop_in_every_family(family: str, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "checkpoint", tmp_path / "scratch", family=family)
    for mask in typing.get_args(Mask) if family == "bert" else ("token",):
        found = [scored.score() for scored in SentenceScorer(path, mask=mask).scored(TEXTS)]
        assert found == pytest.approx([plain(path, text, mask) for text in TEXTS], abs=1e-4)


@pytest.mark.parametrize("family", ["gpt2", "ltr"])
def test_from_left_to_right_each_piece_is_named_from_those_before_it(
    family: str, tmp_path: Path
) -> None:
    path = write_checkpoint(tmp_path / "checkpoint", tmp_path / "scratch", family=family)
    loaded = checkpoint.load(path)
    pieces, model = tokenizer.load(loaded.tokenizer), load_model(loaded.model, loaded.state)
    for text, scored in zip(TEXTS, SentenceScorer(path).scored(TEXTS), strict=True):
        inner = pieces.encode_batch([text])[0]
        ids = torch.tensor([[pieces.special.cls, *inner]])
        with torch.inference_mode():
            logits = model({"input_ids": ids, "token_type_ids": 0 * ids})["lm_logits"][
                0
            ].log_softmax(-1)
        expected = [float(logits[place, token]) for place, token in enumerate(inner)]
        assert scored.log_probabilities.tolist() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_logits_are_computed_in_parts(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU a batch asks for 65,536 places: whole logits of them would take gigabytes."""
    path = write_checkpoint(tmp_path / "checkpoint", tmp_path / "scratch", family=family)
    expected = [scored.score() for scored in SentenceScorer(path).scored(TEXTS)]
    monkeypatch.setattr("cloze.model.use.scorer.LOGITS", 3)
    rows: list[int] = []

    def note(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if isinstance(module, VocabularyHead):
            rows.append(len(inputs[0]))

    with register_module_forward_pre_hook(note):
        found = [scored.score() for scored in SentenceScorer(path).scored(TEXTS)]
    assert found == pytest.approx(expected, abs=1e-5)
    assert rows
    assert max(rows) <= 3


def test_what_is_masked_where_a_piece_is_asked_for() -> None:
    starts = np.array([True, True, False, False, True])  # a word of three pieces between two of one
    assert masks(starts, "token").tolist() == np.eye(5, dtype=bool).tolist()
    rows = [list(map(int, row)) for row in masks(starts, "whole-word")]
    assert rows == [
        [1, 0, 0, 0, 0],
        [0, 1, 1, 1, 0],
        [0, 1, 1, 1, 0],
        [0, 1, 1, 1, 0],
        [0, 0, 0, 0, 1],
    ]
    rows = [list(map(int, row)) for row in masks(starts, "word-l2r")]
    assert rows == [
        [1, 0, 0, 0, 0],
        [0, 1, 1, 1, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 0, 1, 0],
        [0, 0, 0, 0, 1],
    ]


@given(
    sentences=st.lists(
        st.lists(st.integers(5, 9), min_size=1, max_size=8), min_size=1, max_size=12
    ),
    tokens=st.sampled_from([1, 16, 64]),
    mask=st.sampled_from(["token", "whole-word", "word-l2r", None]),
)
def test_every_piece_is_asked_for_once_at_its_place_and_copies_are_never_repeated(
    sentences: list[list[int]], tokens: int, mask: Mask | None
) -> None:
    word_start = np.array([True] * 8 + [False, False])
    rows = [np.array([2, *inner, 3], np.int32) for inner in sentences]
    asked = mask_sentences(rows, [word_start[row[1:-1]] for row in rows], 4, mask)
    assert len({copy.tobytes() for copy in asked.copies}) == len(asked.copies)
    assert asked.label.tolist() == [token for inner in sentences for token in inner]
    seen = []
    for part in scoring_batches(asked, tokens, 0):
        assert len(part.ids) == 1 or part.ids.size <= tokens
        for place, answer in zip(part.positions[part.rows], part.predictions, strict=True):
            row, column = divmod(int(place), part.ids.shape[1])
            copy = asked.copies[asked.copy[answer]]
            assert part.ids[row, : part.lengths[row]].tolist() == copy.tolist()
            assert column == asked.position[answer]
            if mask is None:
                assert copy[column + 1] == asked.label[answer]
            else:
                assert copy[column] == 4
            seen.append(int(answer))
    assert sorted(seen) == list(range(len(asked.label)))


def test_a_sentence_scores_alike_alone_and_among_others_and_normalised_by_what_is_said(
    directory: str,
) -> None:
    scorer = SentenceScorer(directory)
    among = scorer.scored(TEXTS)
    for text, found in zip(TEXTS, among, strict=True):
        (alone,) = scorer.scored([text])
        assert alone.pieces == found.pieces
        assert alone.log_probabilities == pytest.approx(found.log_probabilities, abs=1e-5)
    total, count = among[0].score(), len(among[0].pieces)
    assert count == 7
    assert among[0].score("tokens") == pytest.approx(total / 7)
    assert among[0].score("penalty") == pytest.approx(total / 2**0.8)
    assert among[0].score() == among[4].score()


def test_transformers_gives_the_same_scores_over_the_exported_checkpoint(
    directory: str, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    from cloze.model.hub.write import write_directory

    write_directory(checkpoint.load(directory), str(tmp_path / "hub"))
    pieces = transformers.AutoTokenizer.from_pretrained(tmp_path / "hub")
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "hub").eval()
    for text, scored in zip(TEXTS, SentenceScorer(directory).scored(TEXTS), strict=True):
        ids = torch.tensor(pieces(text)["input_ids"])
        places = torch.arange(1, len(ids) - 1)
        copies = ids.repeat(len(places), 1)
        copies[torch.arange(len(places)), places] = pieces.mask_token_id
        with torch.inference_mode():
            found = model(input_ids=copies).logits.log_softmax(dim=-1)[
                torch.arange(len(places)), places, ids[places]
            ]
        assert scored.log_probabilities == pytest.approx(found.numpy(), abs=1e-4)


def test_ties_count_half() -> None:
    pairs = [[-1.0, -2.0], [-2.0, -1.0], [-1.0, -1.0]]
    assert correct(pairs).tolist() == [1.0, 0.0, 0.5]
    assert correct([[-1.0, -1.0, -3.0, -1.0], [-3.0, -1.0, -1.0]]).tolist() == [1 / 3, 0.0]


def test_the_interval_is_that_of_resampled_pairs() -> None:
    points = np.array([1.0] * 130 + [0.5] * 20 + [0.0] * 50)
    draw = np.random.default_rng(3)
    means = [points[draw.integers(0, 200, 200)].mean() for _ in range(4000)]
    found = resampled_means(np.random.default_rng(1), 4000, points)
    assert bounds(found) == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.006)


def test_the_interval_of_the_suite_s_average_resamples_each_phenomenon() -> None:
    draw = np.random.default_rng(3)
    sizes = {("a", "a0"): 30, ("a", "a1"): 200, ("b", "b0"): 50}
    contrasts = [
        Contrast(("x", "y"), (0, 0), file, phenomenon, "", {}, "")
        for (file, phenomenon), count in sizes.items()
        for _ in range(count)
    ]
    points = (draw.random(280) < 0.7).astype(float)
    groups = np.split(points, [30, 230])
    expected = []
    for _ in range(4000):
        a0, a1, b0 = (own[draw.integers(0, len(own), len(own))].mean() for own in groups)
        expected.append(((a0 + a1) / 2 + b0) / 2)
    generator = np.random.default_rng(1)
    found = mean_accuracy(contrasts, points, partial(resampled_means, generator, 4000))
    assert bounds(found) == pytest.approx(np.quantile(expected, [0.025, 0.975]), abs=0.006)
    assert np.std(found) == pytest.approx(np.std(expected), rel=0.06)


def jsonl(path: Path, rows: list[tuple[str, ...]] = ROWS) -> str:
    path.write_text(
        "".join(json.dumps(dict(zip(FIELDS, row, strict=True))) + "\n" for row in rows),
        encoding="utf-8",
    )
    return str(path)


def scored(
    directory: str, out: Path, **values: Any
) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    out.mkdir()
    build = BuildContext(
        path=str(out),
        inputs={"checkpoint": directory},
        execution=Execution(device="cpu", threads=1),
        fingerprint="",
    )
    summary = SCORE.run(ScoreConfig.model_validate(values), build).summary
    rows = [json.loads(line) for line in (out / "pairs.jsonl").read_text().splitlines()]
    return summary, rows, json.loads((out / "metrics.json").read_text())


def test_the_stage_judges_pairs_by_phenomenon(directory: str, tmp_path: Path) -> None:
    summary, rows, metrics = scored(
        directory, tmp_path / "out", data=jsonl(tmp_path / "pairs.jsonl"), precision="fp32"
    )
    scorer = SentenceScorer(directory)
    for row, (good, bad, phenomenon, identity, *_) in zip(rows, ROWS, strict=True):
        assert (row["UID"], row["pairID"]) == (phenomenon, identity)
        assert [row["good"], row["bad"]] == pytest.approx(
            [found.score() for found in scorer.scored([good, bad])], abs=1e-5
        )
        assert row["correct"] == (0.5 if good == bad else float(row["good"] > row["bad"]))
    agreement = (rows[0]["correct"] + rows[1]["correct"]) / 2
    assert summary["metrics"] == {
        "accuracy": pytest.approx((2 * agreement + 0.5) / 3),
        "mean_accuracy": pytest.approx((agreement + 0.5) / 2),
        "chance": 0.5,
        "by_phenomenon": {"agreement": agreement, "island": 0.5},
    }
    assert metrics["metrics"]["by_field"] == {"morphology": agreement, "syntax": 0.5}
    assert metrics["metrics"]["by_term"] == {"extraction": 0.5, "number": agreement}
    assert summary["pairs"] == 3
    assert summary["ties"] == 1
    for name in ("accuracy", "mean_accuracy"):
        low, high = summary["interval"][name]
        assert low <= summary["metrics"][name] <= high


def test_bf16_judges_as_fp32_does(directory: str, tmp_path: Path) -> None:
    data = jsonl(tmp_path / "pairs.jsonl")
    exact = scored(directory, tmp_path / "fp32", data=data, precision="fp32")[1]
    rounded = scored(directory, tmp_path / "bf16", data=data, precision="bf16")[1]
    assert [row["good"] for row in rounded] == pytest.approx(
        [row["good"] for row in exact], rel=0.01
    )


def test_what_cannot_be_scored(directory: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="score needs minimal pairs"):
        scored(directory, tmp_path / "out")
    with pytest.raises(UsageError, match="no masked_lm or lm head"):
        SentenceScorer(write_classifier(tmp_path / "classifier", tmp_path / "scratch"))
    with pytest.raises(DataError, match="contains no minimal pairs"):
        (tmp_path / "empty").mkdir()
        read_contrasts(str(tmp_path / "empty"))
    with pytest.raises(DataError, match="does not exist"):
        read_contrasts(str(tmp_path / "none"))
    with pytest.raises(DataError, match="has no words in it"):
        SentenceScorer(directory).scored(["\u00ad"])


def test_all_of_blimp_is_read(shared_data: Path) -> None:
    found = read_contrasts(str(shared_data / "tasks" / "blimp"))
    assert len(found) == 67_000
    assert len({pair.phenomenon for pair in found}) == 67
    assert len({pair.groups["field"] for pair in found}) == 4
