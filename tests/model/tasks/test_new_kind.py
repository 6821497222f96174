"""A task of a kind that nobody thought of is one file and one row: no labels by number, no classes,
no largest score.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests import warm
from tests.checkout import copy_packages, import_path
from tests.model.tasks.stages import settings

STARS = '''
"""How many stars does a review give? The kind: one number a text, by least squares."""

from dataclasses import dataclass, field

import numpy as np
from torch import nn

from cloze.model.tasks.encode import encode
from cloze.model.tasks.files import write_rows
from cloze.model.tasks.task import Loss, Task
from cloze.model.tasks.formats.lines import tsv_lines


@dataclass
class Reviews:
    texts: list[str]
    stars: list[float]
    where: str
    dropped: dict = field(default_factory=dict)
    labelled: bool = True

    def __len__(self):
        return len(self.texts)


class Regressor(nn.Module):
    def __init__(self, encoder, width):
        super().__init__()
        self.encoder, self.number = encoder, nn.Linear(width, 1)

    def forward(self, batch):
        hidden = self.encoder(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"], batch.get("layout"))
        return self.number(hidden[:, 0]).squeeze(-1).float()


class Stars(Task):
    metrics, files = ("negative_error",), "a directory with train.tsv and dev.tsv"

    def read(self, path, split, limit_per_class):
        rows = [values for number, values in tsv_lines(f"{path}/{split}.tsv") if number > 1]
        return Reviews([text for text, _ in rows], [4.0 * float(label) - 2.0 for _, label in rows], path)

    def metadata(self, train):
        return {"lowest": min(train.stars), "highest": max(train.stars)}

    def heads(self, meaning):
        return {"number": {}}

    def encode(self, examples, tokenizer, max_length):
        return encode(examples.texts, None, tokenizer, max_length, {"stars": np.array(examples.stars, np.float32)})

    def network(self, backbone, config, meaning, dropout):
        return Regressor(backbone.encoder, config.hidden_size)

    def count(self, batch):
        return len(batch["stars"])

    def loss(self, outputs, batch):
        wrong = outputs - batch["stars"]
        return Loss(total=wrong.square().sum(), correct=(wrong.abs() < 0.5).sum())

    def select_outputs(self, outputs, batch):
        return outputs

    def decode(self, answers, examples, samples):
        return [float(stars) for stars in answers]

    def score(self, examples, predictions):
        return {"negative_error": -float(np.abs(np.subtract(examples.stars, predictions)).mean())}

    def write_predictions(self, directory, examples, predictions):
        write_rows(f"{directory}/{self.predictions}", [{"text": text, "stars": f"{n:.2f}"} for text, n in zip(examples.texts, predictions)])
'''


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A copy of the program with a task more."""
    root = tmp_path / "program"
    copy_packages(root)
    (root / "model/tasks/kinds/stars.py").write_text(STARS)
    table = root / "model/tasks/table.py"
    text = table.read_text()
    for row, new in (
        (
            "_KINDS = {\n",
            '    "stars": TaskKind("cloze.model.tasks.kinds.stars:Stars", TaskOptions),\n',
        ),
        ("_TASKS = {\n", '    "stars": TaskSpec(kind="stars"),\n'),
    ):
        assert row in text
        text = text.replace(row, row + new)
    table.write_text(text)
    return root


@pytest.mark.timeout(300)
def test_a_kind_without_classes_is_trained_and_evaluated_by_the_command_line(
    program: Path, pretrained: str, sentiment: Path, tmp_path: Path
) -> None:
    def cloze(*arguments: str) -> str:
        command = [
            warm.python(),
            "-c",
            warm.ENTRY,
            *arguments,
            "--json",
        ]
        environment = {**os.environ, "PYTHONPATH": import_path(program)}
        done = subprocess.run(
            command, cwd=program, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    out = str(tmp_path / "stars")
    given = settings(sentiment, epochs=5).model_dump(
        exclude={"data", "task"}, exclude_defaults=True
    )
    how = [f"--set={name}={value}" for name, value in given.items()]
    train = (
        "finetune",
        "--checkpoint",
        pretrained,
        "--task",
        "stars",
        "--data",
        str(sentiment),
        "--out",
        out,
    )
    tuned = json.loads(cloze(*train, *how).splitlines()[-1])
    assert tuned["metrics"].keys() == {"negative_error", "from_scratch"}
    assert tuned["metrics"]["negative_error"] > -1.0  # the mean of all stars is 1.9 off on average
    evaluated = json.loads(
        cloze(
            *(
                "evaluate",
                "--checkpoint",
                out,
                "--data",
                str(sentiment),
                "--out",
                str(tmp_path / "eval"),
            ),
            "--set=precision=fp32",
        ).splitlines()[-1]
    )
    assert evaluated["metrics"] == {"negative_error": tuned["metrics"]["negative_error"]}
    assert (tmp_path / "eval" / "predictions.tsv").read_bytes() == Path(
        out, "predictions.tsv"
    ).read_bytes()
