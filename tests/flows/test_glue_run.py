"""`cloze run glue` as it is typed, on GLUE's nine tasks in files of a few lines and a tiny encoder;
and the other graphs of a checkpoint.
"""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from cloze.labs.papers.submission import FILES
from cloze.model import checkpoint
from cloze.model.families.models import new_model
from cloze.pipeline import tokenizer
from tests import warm
from tests.glue_files import TEST_ROWS, write_glue
from tests.tiny_models import PIECES, tiny_config


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("encoder")
    (directory / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    tokenizer.load(str(directory / "vocab.txt")).save(str(directory / "tokenizer"))
    shape, path = tiny_config(), str(directory / "checkpoint")
    checkpoint.save_weights(
        path,
        model=shape,
        state=new_model(shape).state_dict(),
        tokenizer=str(directory / "tokenizer"),
        heads=shape.heads,
    )
    checkpoint.finalize(path)
    return path


def run(tmp_path: Path, preset: str, *settings: str) -> tuple[dict[str, Any], str]:
    how = [
        "finetune.epochs=1",
        "finetune.global_batch=4",
        "run.device=cpu",
        "run.threads=1",
        "run.oversubscribe=true",
    ]
    options = [part for setting in (*how, *settings) for part in ("--set", setting)]
    command = [warm.python(), "-c", warm.ENTRY, "run", preset, "--no-prefect", "--json", *options]
    environment = {
        **os.environ,
        "CLOZE_RUNS_DIR": str(tmp_path / "runs"),
        "CLOZE_SLOTS_DIR": str(tmp_path / "slots"),
        "COLUMNS": "160",
    }
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=1500, env=environment
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_glue_makes_the_whole_submission(tmp_path: Path, encoder: str) -> None:
    data = write_glue(tmp_path / "glue")
    told, screen = run(
        tmp_path, "glue", f"finetune.checkpoint={encoder}", f"finetune.data={data}",
        "finetune.matrix.seed=[1]",
    )  # fmt: skip
    made = {stage["node"]: stage for stage in told["stages"]}
    assert set(made["submission"]["files"]) == set(FILES)
    with zipfile.ZipFile(made["submission"]["submission"]) as found:
        for name in FILES:
            lines = found.read(name).decode().splitlines()
            assert lines[0] == "index\tprediction"
            assert [line.split("\t")[0] for line in lines[1:]] == [str(i) for i in range(TEST_ROWS)]
    assert "Devlin et al. 2019, table 1" in screen
    assert "left_out" not in told
    assert "Devlin et al. 2019, table 1" in Path(made["report"]["report"]).read_text(
        encoding="utf-8"
    )


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_the_grid_tells_its_best_setting_and_a_task_that_is_not_there_is_left_out(
    tmp_path: Path, encoder: str
) -> None:
    data = write_glue(tmp_path / "glue")
    told, screen = run(
        tmp_path, "grid", f"finetune.checkpoint={encoder}", f"finetune.data={data}",
        "finetune.matrix.learning_rate=[1e-3, 1e-5]",
        "finetune.matrix.global_batch=[4]", "finetune.matrix.epochs=[1]",
        "finetune.matrix.seed=[1, 2]", "finetune.matrix.task=[rte]",
    )  # fmt: skip
    assert "Settings of rte, accuracy on dev" in screen
    (table,) = told["stages"][-1]["tables"]
    assert table["columns"][0] == "learning_rate"
    assert len(table["rows"]) == 2


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_together_stands_beside_alone(tmp_path: Path, encoder: str) -> None:
    data = write_glue(tmp_path / "glue")
    _, screen = run(
        tmp_path, "multitask", f"finetune.checkpoint={encoder}", f"finetune.data={data}",
        "finetune.matrix.seed=[1]",
        "finetune.matrix.task=[rte, mrpc]", "finetune@multitask.matrix.seed=[1]",
        "finetune@multitask.tasks={rte: {}, mrpc: {}}",
    )  # fmt: skip
    assert "Several tasks at once and each alone" in screen
