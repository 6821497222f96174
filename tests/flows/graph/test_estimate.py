"""What a plan says that it will take: from what was measured, scaled by the work, and honest about
what nobody knows.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from cloze.core.artifacts import artifact
from cloze.flows.graph import config as configs
from cloze.flows.graph import estimate, plan, stages
from cloze.flows.graph.estimate import Estimate
from cloze.flows.graph.overrides import parse
from cloze.flows.graph.plan import PlannedNode
from cloze.flows.machine import slots
from cloze.flows.run import status_file
from cloze.flows.run.session import RunParameters, RunSession, run_plain
from cloze.flows.views import run_tables
from cloze.model.families.registry import model_config, presets
from cloze.model.train.plan import estimates
from cloze.model.train.plan.cost import PASS_START

BOOKS = str(configs.samples_directory() / "books")
CONFIG = f"""
corpus: {{sources: [{{kind: books, path: {BOOKS}}}]}}
vocab: {{size: 2000}}
dataset: {{length: 64, mask_copies: 4}}
pretrain: {{model: bert-tiny, steps: 100, global_batch: 16}}
finetune: {{task: sst2, data: {configs.samples_directory() / "tasks" / "sentiment"}}}
evaluate: {{data: {configs.samples_directory() / "tasks" / "sentiment"}}}
report: {{}}
run: {{device: cpu}}
"""
SUMMARIES: dict[str, dict[str, Any]] = {
    "corpus": {"bytes": 40_000, "documents": 14},
    "vocab": {"size": 2000, "sample_bytes": 36_000, "bytes_per_piece": 3.5},
    "dataset": {"tokens": 11_000, "mean_length": 60.0, "length": 64, "copies": 4},
    "pretrain": {
        "parameters": 750_000,
        "tokens_per_second": 2400.0,
        "steps": 100,
        "device": "cpu",
        "world_size": 1,
    },
    "finetune": {"metrics": {"accuracy": 0.5}},
    "evaluate": {"metrics": {"accuracy": 0.5}},
    "report": {"report": "report.html", "masks": [{"node": "pretrain"}]},
    "vectors": {
        "documents": 14,
        "size": 128,
        "tokens": 9523,
        "parameters": 750_000,
        "device": "cpu",
    },
    "semdedup": {
        "documents": 12,
        "bytes": 36_000,
        "size": 128,
        "clusters": 1,
        "dropped": {"semantic_duplicate": 2},
    },
}
SECONDS = {
    "corpus": 5.0,
    "vocab": 4.0,
    "dataset": 6.0,
    "pretrain": 50.0,
    "finetune": 20.0,
    "evaluate": 9.0,
    "report": 8.0,
}
SECONDS |= {"vectors": 30.0, "semdedup": 20.0}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("CLOZE_CPUS", "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "toy.yaml").write_text(CONFIG)
    return tmp_path


def planned(
    place: Path, *settings: str, name: str = "toy", **how: Any
) -> tuple[list[PlannedNode], dict[str, Estimate]]:
    overrides = parse([*settings, f"name={name}"], "a.b=c", sections=True)
    steps = plan.plan(configs.load(str(place / "toy.yaml"), overrides), **how)
    return steps, estimate.estimates(steps, plan.runs_directory())


def made(steps: list[PlannedNode], **summaries: Mapping[str, Any]) -> None:
    """Artifacts as if all steps had been made."""
    for step in steps:
        stage = step.node.stage
        config = step.node.config.model_dump(mode="json")
        tokens = 96_000 if stage == "pretrain" else 5000  # 1,600 rows of 60 tokens
        summary = {**SUMMARIES[stage], **summaries.get(stage, {})}
        if stage == "pretrain":
            model = model_config(config["model"], vocab_size=2000)
            summary["training_flops"] = tokens * estimates.flops_per_token(model, 60)
        Path(step.artifact).mkdir(parents=True)
        manifest = artifact.Manifest(
            stage=stage, version=stages.stage(stage).version, fingerprint=step.fingerprint,
            parents={}, config=config, files=(),
            rows=1600, tokens=tokens, summary=summary,
            seconds=SECONDS[stage],
            execution=step.node.execution.model_dump(mode="json"),
        )  # fmt: skip
        Path(step.artifact, artifact.MANIFEST).write_text(
            json.dumps(asdict(manifest))
        )  # five hundred fsyncs would take their time
        plan.link_to(step)


def test_rows_read_from_left_to_right_predict_every_position(place: Path) -> None:
    """Logits of 2,000 words are a third of BERT-tiny's work then, and .16 of that otherwise."""

    def seconds(*settings: str) -> float:
        found = planned(place, "pretrain.steps=1000000", *settings)[1]["pretrain"].seconds
        assert found is not None
        return found

    masked, both = seconds(), "pretrain.objectives=[mlm, clm]"
    causal = seconds("pretrain.objectives=[clm]") - masked
    logits = 6 * 2000 * 128 * 0.84  # that a row of masks does not compute
    work = estimates.step_flops(model_config("bert-tiny", vocab_size=2000), 60, "cpu")
    assert causal / masked == pytest.approx(logits / work, rel=0.02)
    assert seconds(both) - masked == pytest.approx(causal / 2, rel=0.01)
    assert seconds(both, "pretrain.causal_share=0.875") - masked == pytest.approx(
        causal * 7 / 8, rel=0.01
    )


def test_where_nothing_was_measured_it_is_rough_and_says_so(place: Path) -> None:
    _, found = planned(place)
    assert {one.basis for one in found.values()} == {"rough"}
    assert all(one.seconds is not None and one.seconds > 0 for one in found.values())
    assert all(one.memory_bytes and one.disk_bytes for one in found.values())
    assert {one.gpu_memory_bytes for one in found.values()} == {0}


def test_vectors_and_semantic_duplicates_are_planned(place: Path) -> None:
    head, end = (
        CONFIG.split("finetune:")[0],
        "vectors: {}\nsemdedup: {similarity: 0.9}\nrun: {device: cpu}\n",
    )
    (place / "toy.yaml").write_text(head + end)
    steps, found = planned(place)
    names = ("vectors", "semdedup")
    assert [
        (found[name].basis, bool(found[name].seconds), bool(found[name].memory_bytes))
        for name in names
    ] == [("rough", True, True)] * 2
    assert (
        found["semdedup"].disk_bytes > found["vectors"].disk_bytes > 0
    )  # the corpus again, and a few numbers a document
    made(steps)
    _, found = planned(place, force=["vectors", "semdedup"])
    assert [(found[name].seconds, found[name].basis) for name in names] == [
        (30.0, "measured"),
        (20.0, "measured"),
    ]
    _, found = planned(
        place, "vectors.windows=1", "vectors.max_length=64"
    )  # where a document has 680 pieces
    assert found["vectors"].basis == "scaled"
    assert found["vectors"].seconds < 30.0


def test_scores_are_planned_by_the_merged_checkpoint_s_size_and_by_the_mask(place: Path) -> None:
    """Left to right a sentence is read once, with masks once per token."""
    pairs = place / "pairs.jsonl"
    pairs.write_text(
        '{"sentence_good": "Dogs bark loudly.", "sentence_bad": "Dogs barks."}\n' * 20_000
    )
    head = CONFIG.split("finetune:")[0]
    scored = f"merge: {{}}\nscore: {{checkpoint: merge, data: {pairs}}}\nrun: {{device: cpu}}\n"
    (place / "toy.yaml").write_text(head + scored)

    def seconds(*settings: str) -> float:
        found = planned(place, *settings)[1]["score"].seconds
        assert found is not None
        return found - PASS_START

    assert seconds() == pytest.approx(12 * seconds("score.mask=causal"), rel=0.05)
    assert seconds("pretrain.model=bert-mini") > 1.5 * seconds()


def test_what_is_cached_takes_nothing(place: Path) -> None:
    made(planned(place)[0])
    steps, found = planned(place, "evaluate.seed=9")
    assert [step.name for step in steps if not step.cached] == ["evaluate", "report"]
    assert {
        name: one.seconds for name, one in found.items() if name not in ("evaluate", "report")
    } == dict.fromkeys(list(SECONDS)[:5], 0.0)
    assert (found["evaluate"].seconds, found["evaluate"].basis) == (9.0, "scaled")


def test_the_same_work_again_takes_what_it_took(place: Path) -> None:
    made(planned(place)[0])
    _, found = planned(place, force=["pretrain", "evaluate"])
    assert (found["pretrain"].seconds, found["pretrain"].basis) == (50.0, "measured")
    assert (found["evaluate"].seconds, found["evaluate"].basis) == (9.0, "measured")
    assert planned(place, "pretrain.seed=5")[1]["pretrain"].seconds == 50.0


def test_more_steps_take_longer_by_the_steps_alone(place: Path) -> None:
    """100 steps of 960 tokens at 2,400 tokens/s are 40 s of the 50: ten are start and end."""
    made(planned(place)[0])
    found = planned(place, "pretrain.steps=300")[1]["pretrain"]
    assert found.basis == "scaled"
    assert found.seconds == pytest.approx(10 + 120, rel=0.02)
    assert planned(place, "pretrain.global_batch=8")[1]["pretrain"].seconds == pytest.approx(
        10 + 20, rel=0.02
    )


def test_a_training_that_continues_takes_the_rest_alone(place: Path) -> None:
    made(planned(place)[0])
    step = next(step for step in planned(place, "pretrain.steps=300")[0] if step.name == "pretrain")
    saved = Path(step.artifact) / "checkpoints" / "step-00000150"
    saved.mkdir(parents=True)
    (saved / "checkpoint.json").write_text("{}")
    claimed = {"stage": "pretrain", "fingerprint": step.fingerprint, "build": "b"}
    (Path(step.artifact) / "_building.json").write_text(json.dumps(claimed))
    steps, found = planned(place, "pretrain.steps=300")
    assert (
        next(step.reason for step in steps if step.name == "pretrain") == "continues from step 150"
    )
    assert found["pretrain"].seconds == pytest.approx(
        12 + 59, rel=0.02
    )  # of 130 s, 12 of them to start
    forced = planned(place, "pretrain.steps=300", force=["pretrain"])
    assert next(step.reason for step in forced[0] if step.name == "pretrain") == "forced"
    assert forced[1]["pretrain"].seconds == pytest.approx(130, rel=0.02)


def test_a_limit_of_the_examples_makes_a_fine_tuning_shorter(place: Path) -> None:
    def seconds(*settings: str) -> float:
        found = planned(place, *settings)[1]["finetune"].seconds
        assert found is not None
        return found

    assert seconds("finetune.limit_per_class=2") < seconds()
    assert seconds("finetune.limit_per_class=1000000") == seconds()
    made(planned(place)[0])
    assert seconds("finetune.limit_per_class=2") < SECONDS["finetune"]


def test_other_runs_speak_for_a_new_one_the_nearest_in_size(place: Path) -> None:
    made(planned(place, name="tiny")[0])
    large = {"parameters": 11_000_000, "tokens_per_second": 100.0}
    made(planned(place, "pretrain.model=bert-mini", name="mini")[0], pretrain=large)
    tiny, small, base = (
        planned(place, f"pretrain.model={model}", "pretrain.learning_rate=0.5")[1]["pretrain"]
        for model in ("bert-tiny", "bert-small", "bert-base")
    )
    assert tiny.seconds == pytest.approx(45, rel=0.1)
    assert (tiny.basis, small.basis, base.basis) == ("scaled", "scaled", "rough"), (
        "nothing says how fast BERT-base is"
    )
    assert small.seconds is not None
    assert small.seconds > 960, "slower than the mini model at 100 tokens/s"


def test_a_short_run_does_not_speak_for_a_long_one(place: Path) -> None:
    made(planned(place)[0], pretrain={"tokens_per_second": 2000.0, "steps": 100})
    found = planned(place, "pretrain.steps=100000")[1]["pretrain"]
    assert found.basis == "rough"
    assert found.seconds is not None
    assert found.seconds < 1000 * 50


def test_an_artifact_that_tells_nothing_costs_the_estimate_and_nothing_else(place: Path) -> None:
    steps, _ = planned(place)
    made(steps, pretrain={"parameters": None}, corpus={"bytes": "odd"})
    _, found = planned(place, "pretrain.steps=300", "corpus.heldout_fraction=0.1")
    assert found["pretrain"].seconds == 50.0
    assert found["corpus"].seconds == 5.0


def test_what_a_made_artifact_does_not_tell_follows_from_its_inputs(place: Path) -> None:
    """The dataset's summary of an earlier version has no vocabulary, a training's no model."""
    made(planned(place)[0])
    _, found = planned(place, "pretrain.steps=150", "finetune.epochs=9")
    assert found["pretrain"].basis == "scaled"
    weights = estimates.approximate_parameters(
        presets()["bert-tiny"].model_copy(update={"vocab_size": 2000})
    )
    assert (
        found["pretrain"].disk_bytes == 12 * weights * 5
    )  # two on the way, two that stay for merging, one being written
    assert found["finetune"].memory_bytes == planned(place, name="anew")[1]["finetune"].memory_bytes


def test_disk_grows_with_what_is_kept_and_memory_with_the_model(place: Path) -> None:
    _, few = planned(place)
    _, many = planned(place, "run.keep_checkpoints=5", "pretrain.milestones=[10, 20]")
    weights = estimates.approximate_parameters(
        presets()["bert-tiny"].model_copy(update={"vocab_size": 2000})
    )
    assert few["pretrain"].disk_bytes == 12 * weights * 5
    assert many["pretrain"].disk_bytes == 12 * weights * 10
    large = planned(place, "pretrain.model=bert-base")[1]["pretrain"]
    assert (large.memory_bytes or 0) > (few["pretrain"].memory_bytes or 0) + 16 * 80_000_000


def test_a_gpu_is_asked_for_where_there_is_one(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(estimate, "_gpu", lambda: (80 << 30, "NVIDIA A100-SXM4-80GB"))
    found = planned(
        place,
        "run.device=auto",
        "pretrain.model=bert-base",
        "pretrain.steps=100000",
        "pretrain.global_batch=256",
    )[1]
    assert found["pretrain"].gpu_memory_bytes
    assert 5e9 < found["pretrain"].gpu_memory_bytes < 80 << 30
    assert found["dataset"].gpu_memory_bytes == 0
    on_cpu = planned(
        place,
        "run.device=cpu",
        "pretrain.model=bert-base",
        "pretrain.steps=100000",
        "pretrain.global_batch=256",
    )[1]
    assert (on_cpu["pretrain"].seconds or 0) > 50 * (found["pretrain"].seconds or 1e9)


@pytest.mark.parametrize(
    ("name", "vocabulary", "counted"),
    [
        ("bert-base", 30522, 109.5e6), ("bert-large", 30522, 335.1e6), ("bert-tiny", 30522, 4.4e6), ("roberta-base", 50265, 124.7e6),
        ("albert-base", 30000, 11.7e6), ("albert-xxlarge", 30000, 222.6e6), ("modern-base", 50368, 149e6),
    ],
)  # fmt: skip
def test_the_model_s_arithmetic_is_that_of_the_papers(
    name: str, vocabulary: int, counted: float
) -> None:
    model = presets()[name].model_copy(update={"vocab_size": vocabulary})
    assert estimates.approximate_parameters(model) == pytest.approx(counted, rel=0.08), (
        "without pooler and biases"
    )


def test_operations_are_counted_for_every_layer_and_network() -> None:
    """BERT-base at 128: 6 · 85M weights, 12 L D a layer, and a sixth of the logits."""
    base, albert, electra = (
        presets()[name].model_copy(update={"vocab_size": 30000})
        for name in ("bert-base", "albert-base", "electra-small")
    )
    assert estimates.flops_per_token(base, 128) == pytest.approx(
        6 * 84.9e6 + 12 * 12 * 128 * 768 + 6 * 0.16 * 30000 * 768, rel=0.01
    )
    assert estimates.flops_per_token(albert, 128) == pytest.approx(
        estimates.flops_per_token(base, 128), rel=0.05
    )
    alone = electra.num_hidden_layers * 6 * electra.layer_weights
    assert estimates.flops_per_token(electra, 128) > 1.05 * alone, "the generator works, too"


def test_estimates_need_no_torch() -> None:
    program = (
        "import sys; from cloze.flows.graph import stages, estimate; [stages.stage(name) for name "
        "in stages.TABLE]; print('torch' in sys.modules)"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
        == "False\n"
    )


def _independent(count: int) -> tuple[list[PlannedNode], dict[str, Estimate]]:
    config = configs.RunConfig(
        {
            "corpus": {"sources": [{"kind": "books", "path": BOOKS}]},
            "vocab": {"matrix": {"size": [100 + n for n in range(count)]}},
            "run": {"device": "cpu"},
        },
        "x",
    )
    steps = plan.plan(config)
    return steps, {step.name: Estimate(seconds=10.0) for step in steps}


def test_independent_nodes_are_expected_beside_each_other_as_far_as_slots_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps, found = _independent(4)
    monkeypatch.setattr(slots, "machine", lambda: slots.MachineResources(cores=("0", "1"), gpus=()))
    assert estimate.parallel_seconds(steps, found) == 10 + 20
    monkeypatch.setattr(
        slots, "machine", lambda: slots.MachineResources(cores=("0", "1", "2", "3"), gpus=())
    )
    assert estimate.parallel_seconds(steps, found) == 10 + 10
    monkeypatch.setattr(slots, "machine", lambda: slots.MachineResources(cores=("0",), gpus=()))
    assert estimate.parallel_seconds(steps, found) == 10 + 40
    assert estimate.parallel_seconds(steps, {**found, steps[2].name: Estimate()}) is None
    never = slots.ResourceRequest(gpus=1, cpus=1)
    monkeypatch.setattr(estimate, "resource_request", lambda *_: never)
    assert estimate.parallel_seconds(steps, found) is None


def test_how_far_it_was_off_is_told_of_the_last_start_that_made_something(toy_config: str) -> None:
    first = RunSession(RunParameters(config=toy_config))
    assert status_file.last_estimate_error(first.directory) is None
    run_plain(first)
    run_plain(RunSession(RunParameters(config=toy_config)))  # makes nothing
    oldest = status_file.records_in(first.directory)[0]
    content = json.loads(oldest.read_text())
    assert content["nodes"]["letters"]["estimate"]["seconds"] is None, (
        "no stage of these says what it takes"
    )
    for node, (expected, took) in {"letters": (10.0, 12.0), "count": (20.0, 24.0)}.items():
        content["nodes"][node] |= {
            "estimate": {"seconds": expected},
            "started": 1000.0,
            "ended": 1000.0 + took,
        }
    oldest.write_text(json.dumps(content))
    assert status_file.last_estimate_error(first.directory) == {
        "expected": 30.0,
        "took": 36.0,
        "off": 0.2,
    }
    for node, (expected, peak) in {"letters": (100, 110), "count": (200, 100)}.items():
        content["nodes"][node]["estimate"]["memory_bytes"] = expected
        content["nodes"][node]["figures"] = {"memory_bytes": peak, "gpu_memory_bytes": 0}
    oldest.write_text(json.dumps(content))
    found = status_file.last_estimate_error(first.directory)
    assert found == {
        "expected": 30.0,
        "took": 36.0,
        "off": 0.2,
        "memory": {"node": "count", "expected": 200, "took": 100, "off": -0.5},
    }
    assert list(run_tables.estimate_error_lines(found)) == [
        "Last time: 30.0 s expected, 36.0 s taken: 20% longer.",
        "count: 200 B of memory expected, 100 B taken: 50% less.",
    ]


def test_twice_the_nodes_are_twice_the_work_and_run_cached(place: Path) -> None:
    """Work is the calls of functions, of which no machine has more."""
    calls = []
    for seeds in (40, 80):
        content = CONFIG.replace(
            "finetune: {", f"finetune: {{matrix: {{seed: {[*range(seeds)]}}}, "
        )
        (place / "toy.yaml").write_text(content)
        steps, _ = planned(place, name=f"toy{seeds}")
        assert len(steps) > 2 * seeds
        made(steps)
        with Counted() as counted:
            steps, found = planned(place, "pretrain.seed=3", name=f"toy{seeds}")
            estimate.parallel_seconds(steps, found)
        assert sum(not step.cached for step in steps) == 2 * seeds + 2
        with counted:
            parameters = RunParameters(
                config=str(place / "toy.yaml"), overrides={"name": f"toy{seeds}"}
            )
            results = run_plain(RunSession(parameters))
        assert len(results) == len(steps)
        assert all(result.cached for result in results.values())
        calls.append(counted.calls)
    assert calls[1] < 2.5 * calls[0]  # with a part that is of the square of the nodes: above 3


class Counted:
    """Counts the calls of functions while it is entered."""

    def __init__(self) -> None:
        self.calls = 0

    def __enter__(self) -> Counted:
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _called(self, frame: object, event: str, argument: object) -> None:
        del frame, argument
        self.calls += event == "call"
