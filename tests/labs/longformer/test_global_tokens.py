"""Longformer on tasks: the first token is global, and of questions and choices what the paper names
(Beltagy et al. 2020, sections 5 and 6). Parity is in `tests/parity/test_longformer.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from cloze.labs.serving.predictors import QuestionAnsweringPipeline
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import new_backbone
from cloze.model.tasks.formats.choices import Choices
from cloze.model.tasks.heads import Frozen, task_network
from cloze.model.tasks.table import load_task
from cloze.pipeline.tokenizer.tokenizer import Tokenizer
from tests.model.tasks.stages import evaluate, finetune, settings
from tests.model.tasks.test_families import pretrained_of
from tests.model.tasks.test_spans import asked
from tests.model.tasks.test_spans_stages import content, read
from tests.tiny_models import tiny_config


def globals_of(batch: Any, pieces: Tokenizer) -> list[list[str]]:
    return [
        [pieces.backend.id_to_token(i) for i in ids[chosen].tolist()]
        for ids, chosen in zip(batch["input_ids"], batch["global_attention_mask"], strict=True)
    ]


def test_questions_and_endings_are_global(pieces: Tokenizer) -> None:
    samples = load_task("squad").encode(asked("the film is good", "good"), pieces, 32)
    assert globals_of(samples.batch([0]), pieces) == [["[CLS]", "very", "good"]]
    examples = Choices(
        contexts=["the film"], endings=[["is good", "bad"]], labels=[0], label_names=("0", "1")
    )
    samples = load_task("choice").encode(examples, pieces, 32)
    assert globals_of(samples.batch([0]), pieces) == [
        ["[CLS]", "is", "good", "[SEP]"],
        ["[CLS]", "bad", "[SEP]"],
    ]


def test_other_tasks_and_families_are_as_before(pieces: Tokenizer, shape: ModelConfig) -> None:
    task = load_task("squad")
    batch = task.encode(asked("the film is good", "good"), pieces, 32).batch([0])
    network = task.network(new_backbone(shape), shape, {}, 0.0).eval()
    with torch.inference_mode():
        assert network(batch).equal(network({**batch, "global_attention_mask": None}))


def test_frozen_states_have_the_global_tokens_too(pieces: Tokenizer) -> None:
    task = load_task("squad")
    config = tiny_config(family="longformer", attention_window=4)
    batch = task.encode(asked("the film is good and the plot", "good"), pieces, 32).batch([0])
    frozen = Frozen(layers="last", lstm_size=8, lstm_layers=1)._asdict()
    network = task_network(task, new_backbone(config), config, {"frozen": frozen}, 0.0).eval()
    states = network.states(batch)
    assert not torch.allclose(states, network.states({**batch, "global_attention_mask": None}))


def test_a_longformer_answers_questions(tmp_path: Path, pieces: Tokenizer, shape: Any) -> None:
    for split, count, seed in (("train", 120, 1), ("dev", 30, 2)):
        squad = content(count, seed=seed, unanswerable=False)
        (tmp_path / f"{split}-v1.1.json").write_text(json.dumps(squad), encoding="utf-8")
    start = pretrained_of("longformer", tmp_path, pieces, shape)
    chosen = {"options": {"answer_length": 4}, "max_length": 24, "baselines": False, "epochs": 5}
    made = finetune(settings(tmp_path, task="squad", **chosen), start, tmp_path / "squad").as_json()
    assert made["metrics"]["f1"] > 0.9
    done = evaluate(tmp_path / "squad", tmp_path / "eval", data=str(tmp_path)).as_json()
    assert done["metrics"] == pytest.approx(made["metrics"])
    paragraphs = read(tmp_path / "dev-v1.1.json")["data"][0]["paragraphs"]
    questions = [(one["qas"][0]["question"], one["context"]) for one in paragraphs]
    found = QuestionAnsweringPipeline(str(tmp_path / "squad")).answer_batch(questions)
    predicted = read(tmp_path / "squad" / "predictions.json")
    assert [ranked[0]["answer"] for ranked in found] == list(predicted.values())
