"""Several tasks at once, rates by layer and early stopping: the same on one rank and on two, with
every engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cloze.core.stages.execute import BuildResult, execute
from cloze.core.stages.execution import Execution
from cloze.flows.graph.stages import executable
from cloze.model import checkpoint
from tests.glue_files import write_glue
from tests.model.tasks.stages import settings

pytestmark = pytest.mark.usefixtures("warm")

CONFIG: dict[str, Any] = {
    "task": "multitask",
    "tasks": {"rte": {}, "mrpc": {}},
    "task_sampling_power": 0.5,
    "layer_decay": 0.8,
    "epochs": 6,
    "patience": 1,
    "global_batch": 6,
    "learning_rate": 3e-3,
    "baselines": False,
}


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_two_ranks_learn_and_stop_as_one_does(tmp_path: Path, pretrained: str) -> None:
    loaded, still = checkpoint.load(pretrained), str(tmp_path / "still")
    shape = loaded.model.model_copy(update={"hidden_dropout": 0.0, "attention_dropout": 0.0})
    checkpoint.save_weights(
        still, model=shape, state=loaded.state, tokenizer=loaded.tokenizer, heads=loaded.heads
    )
    checkpoint.finalize(still)
    data = write_glue(tmp_path / "glue", train=20, dev=12)
    ways: dict[str, dict[str, Any]] = {
        "one": {"processes": 1},
        "two": {"processes": 2, "micro_batch": 2, "engine": "torch"},
        "fsdp": {"processes": 2, "micro_batch": 2, "engine": "fsdp"},
        "zero": {"processes": 2, "zero": 2, "engine": "deepspeed"},
    }
    found: dict[str, BuildResult] = {}
    for name, ranks in ways.items():
        how = Execution.model_validate({"device": "cpu", "threads": 1, **ranks})
        out = str(tmp_path / name)
        found[name] = execute(
            executable("finetune"),
            settings(data, **CONFIG),
            {"checkpoint": still},
            out,
            execution=how,
        )
    one = found["one"].manifest.summary
    assert one["steps"] < 6 * 8  # it has stopped early
    weights = checkpoint.load(found["one"].artifact).state
    for name in ("two", "fsdp", "zero"):
        other = found[name].manifest.summary
        assert (other["world_size"], other["steps"], other["kept"]) == (
            2,
            one["steps"],
            one["kept"],
        )
        for key, tensor in checkpoint.load(found[name].artifact).state.items():
            torch.testing.assert_close(
                tensor, weights[key], atol=5e-5, rtol=1e-3, msg=f"{name}: {key}"
            )
