"""`cloze run sample`, as a user runs it: all stages, no work the second time, exactly what is
downstream after a change.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloze.core.artifacts import artifact
from tests.flows.test_cli import Done, cloze, installed
from tests.slices import few

pytestmark = pytest.mark.timeout(1000)
STAGES = ["corpus", "vocab", "dataset", "pretrain", "finetune", "evaluate", "report"]


def run(place: Path, *arguments: str, verb: str = "run") -> Done:
    flags = ["--no-prefect"] if verb == "run" else []
    tracking = {"MLFLOW_TRACKING_URI": f"sqlite:///{place}/mlflow.db"}
    return cloze(verb, "sample", *flags, *arguments, "--json", cwd=place, timeout=900, **tracking)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def first(place: Path) -> Done:
    done = run(place)
    assert done.returncode == 0, done.stderr
    return done


def stages(done: Done) -> dict[str, dict[str, Any]]:
    return {stage["stage"]: stage for stage in done.json["stages"]}


def test_every_stage_gives_what_it_promises(first: Done, place: Path) -> None:
    found = stages(first)
    assert list(found) == STAGES
    assert not any(stage["cached"] for stage in found.values())
    assert {"documents", "bytes", "dropped"} <= found["corpus"].keys()
    assert found["corpus"]["dropped"]["exact_duplicate"] >= 1
    assert found["corpus"]["dropped"]["near_duplicate"] >= 1
    assert found["vocab"]["size"] <= 2000
    assert {"rows", "tokens", "shards", "pair_labels"} <= found["dataset"].keys()
    assert {"steps", "loss", "heldout_loss", "tokens_per_second", "checkpoint"} <= found[
        "pretrain"
    ].keys()
    assert Path(place, found["pretrain"]["checkpoint"]).is_dir()
    assert found["finetune"]["metrics"]["accuracy"] == found["evaluate"]["metrics"]["accuracy"]
    assert Path(place, found["evaluate"]["predictions"]).is_file()
    for stage in found.values():
        assert artifact.verify(str(place / stage["artifact"])).ok


def test_the_report_is_one_file_with_everything(first: Done, place: Path) -> None:
    page = Path(place, stages(first)["report"]["report"]).read_text()
    for part in (
        "documents",
        "What was dropped",
        "unigram entropy",
        "tokens/s",
        "accuracy",
        "Filled masks",
        "exact duplicate",
        "wordpiece",
    ):
        assert part in page
    assert page.count("<svg") >= 4
    assert "src=" not in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert page.count('class="mask"') == 5


def test_mlflow_has_a_parent_and_a_child_a_stage(first: Done, place: Path) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{place}/mlflow.db")
    experiment = client.get_experiment_by_name("cloze")
    assert experiment is not None
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    found = {
        run.info.run_name.split(" ")[0]: run
        for run in client.search_runs([experiment.experiment_id])
    }
    assert set(found) == {"sample", *STAGES}
    assert all(
        found[name].data.tags["mlflow.parentRunId"] == found["sample"].info.run_id
        for name in STAGES
    )
    for name in ("pretrain", "finetune"):
        losses = client.get_metric_history(found[name].info.run_id, "loss/loss")
        steps = [metric.step for metric in losses]
        assert steps == sorted(set(steps))
        assert steps[0] == 1
    pretrain, finetune = found["pretrain"], found["finetune"]
    assert pretrain.data.params["steps"] == "40"
    assert {"task", "seed", "learning_rate", "precision"} <= set(finetune.data.params)
    assert (
        found["sample"].data.metrics["finetune.accuracy"]
        == finetune.data.metrics["result/accuracy"]
    )
    assert (
        found["sample"].data.metrics["pretrain.heldout_loss"]
        == pretrain.data.metrics["heldout/heldout_loss"]
    )
    (given,) = pretrain.inputs.dataset_inputs
    assert (given.dataset.name, json.loads(given.dataset.profile)["copies"]) == ("dataset", 2)
    assert "card.html" in {
        entry.path for entry in client.list_artifacts(found["corpus"].info.run_id)
    }
    assert "report.html" in {
        entry.path for entry in client.list_artifacts(found["sample"].info.run_id)
    }
    (model,) = (
        m
        for m in client.search_logged_models([experiment.experiment_id])
        if m.source_run_id == pretrain.info.run_id
    )
    assert {metric.key: metric.value for metric in model.metrics}[
        "heldout/heldout_loss"
    ] == pretrain.data.metrics["heldout/heldout_loss"]
    versions = {
        name: client.search_model_versions(f"name='{name}'") for name in ("cloze", "cloze-sst2")
    }
    assert [len(found) for found in versions.values()] == [1, 1]
    assert versions["cloze"][0].tags["cloze.fingerprint"].endswith("/checkpoints/step-00000040")


def test_the_second_run_does_no_work(first: Done, place: Path) -> None:
    again = run(place)
    assert all(stage["cached"] for stage in again.json["stages"])
    assert "Nothing to do" in again.stderr


@pytest.mark.parametrize(
    ("setting", "expected"),
    few(
        [
            ("corpus.heldout_fraction=0.2", STAGES),
            ("vocab.size=1900", STAGES[1:]),
            ("dataset.mask_copies=3", STAGES[2:]),
            ("pretrain.steps=41", STAGES[3:]),
            ("finetune.epochs=2", STAGES[4:]),
            ("report.top_k=2", STAGES[6:]),
            ("run.workers=1", []),
            ("run.zero=2", []),
        ],
        "corpus.heldout_fraction=0.2",
        "dataset.mask_copies=3",
        "finetune.epochs=2",
        "report.top_k=2",
        "run.zero=2",
    ),
)
def test_a_change_reruns_exactly_what_is_downstream(
    first: Done, place: Path, setting: str, expected: list[str]
) -> None:
    plan = run(place, "--set", setting, verb="plan").json["nodes"]
    todo = [node for node in plan if not node["cached"]]
    assert [node["stage"] for node in todo] == expected
    assert all((node["seconds"] > 0) != node["cached"] for node in plan)
    if expected:
        assert setting.partition("=")[0].partition(".")[2] in todo[0]["why"]


def test_from_only_force_and_dry_run(first: Done, place: Path) -> None:
    def planned(*arguments: str) -> list[str]:
        return [
            node["stage"]
            for node in run(place, *arguments, verb="plan").json["nodes"]
            if not node["cached"]
        ]

    assert planned("--from", "finetune") == STAGES[4:]
    assert planned("--force-node", "vocab") == ["vocab"]
    before = {
        name: artifact.read_manifest(str(place / "runs" / "sample" / name)).created
        for name in STAGES
    }
    assert run(place, "--from", "report", "--dry-run").returncode == 0
    assert (
        before["report"]
        == artifact.read_manifest(str(place / "runs" / "sample" / "report")).created
    )
    done = run(place, "--only", "vocab", "--force-node", "vocab")
    assert [(stage["stage"], stage["cached"]) for stage in done.json["stages"]] == [
        ("vocab", False)
    ]
    refused = cloze(
        "run", "sample", "--no-prefect", "--only", "dataset", "--set", "vocab.size=1800", cwd=place
    )
    assert (refused.returncode, "--only dataset needs" in refused.stderr) == (2, True)


def test_status_lineage_verify_and_logs(first: Done, place: Path) -> None:
    nodes = cloze("status", "sample", "--json", cwd=place).json["runs"][0]["nodes"]
    assert list(nodes) == STAGES or set(nodes) < set(STAGES), "of its last start"
    assert {node["state"] for node in nodes.values()} <= {"finished", "cached"}
    tree = cloze("lineage", "runs/sample/dataset", "--json", cwd=place).json
    assert (
        tree["parents"]["vocab"]["parents"]["corpus"]["fingerprint"]
        == tree["parents"]["corpus"]["fingerprint"]
    )
    assert cloze("verify", "runs/sample/dataset", "--json", cwd=place).json["ok"] is True
    assert "rank0.log" in cloze("logs", "runs/sample/pretrain", cwd=place).stdout
    shard = next((place / "runs" / "sample" / "dataset").resolve().glob("train-*.arrow"))
    content = shard.read_bytes()
    shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    damaged = cloze("verify", "runs/sample/dataset", "--json", cwd=place)
    shard.write_bytes(content)
    assert (damaged.returncode, damaged.json["ok"]) == (3, False)
    assert shard.name in damaged.json["artifacts"][0]["errors"][0]


def test_fill_mask_and_export(first: Done, place: Path) -> None:
    found = installed(  # in a fresh process
        "fill-mask",
        "runs/sample/pretrain",
        "Paris is the capital of [MASK].",
        "--top-k",
        "3",
        "--json",
        cwd=place,
    ).json
    assert len(found["predictions"][0]) == 3
    assert (
        cloze("export", "runs/sample/pretrain", "--out", "hf", "--json", cwd=place).returncode == 0
    )
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForPreTraining.from_pretrained(str(place / "hf"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(place / "hf"))
    batch = tokenizer("Paris is the capital of [MASK].", return_tensors="pt")
    logits = model(**batch).prediction_logits[0]
    best = logits[batch["input_ids"][0] == tokenizer.mask_token_id].argmax(-1)
    assert tokenizer.convert_ids_to_tokens(best) == [found["predictions"][0][0]["token"]]
