"""What a plan says that it will take: from what was measured, scaled by the work, and honest about
what nobody knows.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from cloze.flows.graph import config as configs
from cloze.flows.graph import estimate, plan
from cloze.flows.graph.estimate import Estimate
from cloze.flows.graph.plan import PlannedNode
from cloze.flows.machine import slots
from cloze.flows.run.session import RunParameters, RunSession, run_plain
from cloze.model.families.registry import model_config, presets
from cloze.model.train.plan import estimates
from cloze.model.train.plan.cost import PASS_START
from tests.flows.graph.estimated import BOOKS, CONFIG, SECONDS, made, planned
from tests.flows.graph.estimated import place as place

pytestmark = pytest.mark.usefixtures("place")


def test_rows_read_from_left_to_right_predict_every_position(place: Path) -> None:
    """Logits of 2,000 words are a third of BERT-tiny's work then, and .16 of that otherwise."""

    def seconds(*settings: str) -> float:
        found = planned(place, "pretrain.steps=1000000", *settings)[1]["pretrain"].seconds
        assert found is not None
        return found

    masked, both = seconds(), "pretrain.objectives=[mlm, clm]"
    causal = seconds("pretrain.objectives=[clm]") - masked
    logits = 6 * 2000 * 128 * 0.84  # that a row of masks does not compute
    work = estimates.StepCost.of(
        model_config("bert-tiny", vocab_size=2000), 60, device="cpu"
    ).operations
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
