"""The presets: each is a graph of the shape that its paper asks for, with the paper's numbers. One file, for it is one table of papers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from flows.graph import config as configs
from flows.graph.config import RunConfig
from flows.graph.nodes import Node
from flows.graph.overrides import parse
from flows.graph.plan import plan
from pipeline.core.errors import DataError, UsageError
from tests import warm
from tests.glue_files import write_glue

GLUE = Path()
BOOKS = str(configs.samples_directory() / "books")
SENTIMENT = str(configs.samples_directory() / "tasks" / "sentiment")
SOURCES = f"corpus.sources=[{{kind: books, path: {BOOKS}}}]"
WITHOUT_TEXT = {  # presets whose text the user brings
    "albert-base", "bert-base", "bert-large-two-phase", "domain-adaptation", "electra-small", "modernbert-base", "roberta-base",
}  # fmt: skip
OF_A_CHECKPOINT = {"glue", "grid", "together", "transfer"}  # presets that begin with a checkpoint and a directory of tasks


@pytest.fixture(scope="module", autouse=True)
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GLUE's files."""
    global GLUE
    GLUE = write_glue(tmp_path_factory.mktemp("tasks") / "glue")
    return GLUE


def load(name: str, *settings: str) -> RunConfig:
    given: list[str] = [SOURCES, *settings] if name in WITHOUT_TEXT else list(settings)
    if name in OF_A_CHECKPOINT:
        given = [f"finetune.data={GLUE.parent if name == 'transfer' else GLUE}", *given]
    return configs.load(name, parse(given, "section.key=value", sections=True))


def inputs(node: Node) -> dict[str, str]:
    return {role: f"{origin.node or ''}/{origin.path}".strip("/") for role, origin in node.inputs.items()}


def values(node: Node, *names: str) -> list[Any]:
    return [getattr(node.config, name) for name in names]


@pytest.mark.parametrize("name", configs.preset_names())
def test_every_preset_is_a_graph_under_its_own_name(name: str) -> None:
    config = load(name)
    assert config.name == name
    for place, node in enumerate(config.nodes.values()):
        assert all(list(config.nodes).index(parent) < place for parent in node.after)
    first = "finetune" if name in OF_A_CHECKPOINT else "corpus"
    assert {first, "report"} <= {node.stage for node in config.nodes.values()}


@pytest.mark.parametrize("name", sorted(set(configs.preset_names()) - WITHOUT_TEXT - OF_A_CHECKPOINT))
def test_presets_with_text_name_files_that_are_there(name: str) -> None:
    for source in load(name).nodes["corpus"].config.sources:  # type: ignore[attr-defined]
        assert source.kind == "docstrings" or Path(source.path).exists()


@pytest.mark.parametrize("name", sorted(WITHOUT_TEXT))
def test_without_text_one_sentence_says_how_to_give_it(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        configs.load(name)
    assert (
        str(caught.value)
        == "corpus.sources is missing; give it: --set corpus.sources='[{kind: wikipedia, path: DUMP.xml.bz2}]'"
    )


@pytest.mark.parametrize(("name", "model"), [("bert-base", (12, 768)), ("bert-large-two-phase", (24, 1024))])
def test_bert_is_trained_at_128_then_at_512_under_one_schedule(name: str, model: tuple[int, int]) -> None:
    nodes = load(name).nodes
    assert list(nodes) == ["corpus", "vocab", "dataset", "dataset@512", "pretrain", "pretrain@512", "report"]
    first, second = nodes["pretrain"], nodes["pretrain@512"]
    assert inputs(first) == {"dataset": "dataset"}
    assert inputs(second) == {"dataset": "dataset@512", "continue": "pretrain"}
    assert [values(nodes[name], "length")[0] for name in ("dataset", "dataset@512")] == [128, 512]
    assert (first.config.model.num_hidden_layers, first.config.model.hidden_size) == model  # type: ignore[attr-defined]
    for node, steps in ((first, 900_000), (second, 100_000)):
        said = values(node, "steps", "schedule_steps", "global_batch", "learning_rate", "warmup_steps", "schedule", "betas")
        assert said == [steps, 1_000_000, 256, 1e-4, 10_000, "linear", (0.9, 0.999)]


def test_a_changed_second_phase_leaves_the_first_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOZE_RUNS", str(tmp_path))

    def prints(*settings: str) -> dict[str, str]:
        return {step.name: step.fingerprint for step in plan(load("bert-base", *settings))}

    before, after = prints(), prints("pretrain@512.steps=50000")
    assert {name for name in before if before[name] != after[name]} == {"pretrain@512", "report"}


def test_roberta_albert_and_electra_have_their_papers_numbers() -> None:
    roberta, albert, electra = (load(name).nodes for name in ("roberta-base", "albert-base", "electra-small"))
    said = ("steps", "global_batch", "learning_rate", "warmup_steps")
    assert values(roberta["pretrain"], *said, "betas", "clip", "dynamic") == [
        500_000,
        8192,
        6e-4,
        24_000,
        (0.9, 0.98),
        0.0,
        True,
    ]
    assert values(roberta["vocab"], "kind", "size") == ["bpe", 50265]
    assert values(roberta["dataset"], "pairing", "length", "copies") == ["full", 512, 1]
    assert values(albert["pretrain"], *said, "optimizer") == [125_000, 4096, 1.76e-3, 3125, "lamb"]
    assert values(albert["dataset"], "pairing", "masking", "length") == ["sop", "n-gram", 512]
    assert albert["pretrain"].config.model.family == "albert"  # type: ignore[attr-defined]
    assert values(electra["pretrain"], *said) == [1_000_000, 128, 5e-4, 10_000]
    assert electra["pretrain"].config.model.hidden_size == 256  # type: ignore[attr-defined]


def test_modernbert_goes_through_three_phases_of_as_many_tokens_a_step() -> None:
    nodes = load("modernbert-base").nodes
    phases = [nodes[name] for name in ("pretrain", "pretrain@context", "pretrain@decay")]
    assert [inputs(node).get("continue") for node in phases] == [None, "pretrain", "pretrain@context"]
    assert [inputs(node)["dataset"] for node in phases] == ["dataset", "dataset@8192", "dataset@8192"]
    assert [values(node, "schedule", "learning_rate") for node in phases] == [
        ["constant", 8e-4],
        ["constant", 3e-4],
        ["sqrt", 3e-4],
    ]
    for node in phases:
        optimizer, rate, decay, clip = values(node, "optimizer", "learning_rate", "weight_decay", "clip")
        assert (optimizer, clip) == ("stable-adamw", 0)
        assert rate * decay == pytest.approx(1e-5, rel=1e-2)  # of the weights a step, at the peak
    lengths = {name: nodes[name].config.length for name in ("dataset", "dataset@8192")}  # type: ignore[attr-defined]
    assert lengths == {"dataset": 1024, "dataset@8192": 8192}
    assert len({node.config.global_batch * lengths[inputs(node)["dataset"]] for node in phases}) == 1  # type: ignore[attr-defined]
    assert values(nodes["dataset@8192"], "pairing", "mask_rate") == ["packed", 0.3]


def test_domain_adaptation_has_scibert_s_three_ways() -> None:
    nodes = load(
        "domain-adaptation", "pretrain.checkpoint=a/b", "vocab.import_path=a/b", "vocab@extended.extend_path=a/b"
    ).nodes
    ways = {name: inputs(node) for name, node in nodes.items() if node.stage == "pretrain"}
    assert ways == {
        "pretrain": {"checkpoint": "a/b", "dataset": "dataset"},
        "pretrain@extended": {"checkpoint": "a/b", "dataset": "dataset@extended"},
        "pretrain@scratch": {"dataset": "dataset@scratch"},
        "pretrain@scratch-512": {"continue": "pretrain@scratch", "dataset": "dataset@scratch-512"},
    }
    vocabularies = {name: inputs(node)["vocab"] for name, node in nodes.items() if node.stage == "dataset"}
    assert vocabularies == {
        "dataset": "vocab", "dataset@extended": "vocab@extended", "dataset@scratch": "vocab@scratch", "dataset@scratch-512": "vocab@scratch",
    }  # fmt: skip
    assert values(nodes["vocab"], "import_path", "extend_path") == ["a/b", None]
    assert values(nodes["vocab@extended"], "import_path", "extend_path") == [None, "a/b"]
    assert values(nodes["vocab@scratch"], "import_path", "extend_path", "size") == [None, None, 30_000]


def test_glue_is_each_task_with_each_seed_and_its_test_files() -> None:
    config = load("glue")
    tuned = {name: values(node, "task", "seed", "data") for name, node in config.nodes.items() if node.stage == "finetune"}
    tasks = ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"]
    assert tuned == {f"finetune@{task}-{seed}": [task, seed, str(GLUE)] for task in tasks for seed in (1, 2, 3)}
    answered = {name: node for name, node in config.nodes.items() if node.stage == "evaluate"}
    assert len(answered) == 3 * 9 + 3 * 3
    for node in answered.values():
        maker = tuned[inputs(node)["checkpoint"]]
        assert values(node, "task", "data") == [maker[0], maker[2]]
    more = [name for name in answered if name.startswith("evaluate@more")]
    assert {values(answered[name], "task", "split")[1] for name in more} == {"dev_mismatched", "test_mismatched", "ax"}
    assert not config.left_out


def test_glue_leaves_out_what_is_not_at_hand(tmp_path: Path) -> None:
    data = write_glue(tmp_path / "glue")
    for folder in ("MNLI", "QQP"):
        shutil.rmtree(data / folder)
    (data / "RTE" / "test.tsv").unlink()
    config = configs.load("glue", parse([f"finetune.data={data}"], "x", sections=True))
    assert {node.values["task"] for node in config.nodes.values() if node.stage == "finetune"} == {
        "cola", "sst2", "mrpc", "stsb", "qnli", "rte", "wnli",
    }  # fmt: skip
    assert "evaluate@rte-1" not in config.nodes
    assert config.left_out["evaluate@rte-1"] == f"{data}/RTE holds no test split"
    assert config.left_out["finetune@mnli-2"] == f"{data}/MNLI holds no train split"
    assert config.left_out["evaluate@more-mnli-ax"] == "needs finetune@mnli-1, which is left out"


def test_glue_can_go_on_from_mnli() -> None:
    nodes = load("glue", "finetune@from-mnli.when=there").nodes
    more = {name: inputs(node) for name, node in nodes.items() if name.startswith("finetune@from-mnli")}
    assert more == {
        f"finetune@from-mnli-{task}-{seed}": {"checkpoint": f"finetune@mnli-{seed}"}
        for task in ("mrpc", "stsb", "rte")
        for seed in (1, 2, 3)
    }
    assert inputs(nodes["evaluate@from-mnli-rte-2"]) == {"checkpoint": "finetune@from-mnli-rte-2"}


def test_the_grid_is_bert_s() -> None:
    """Devlin et al. 2019, appendix A.3."""
    nodes = [node for node in load("grid").nodes.values() if node.stage == "finetune"]
    assert {tuple(values(node, "learning_rate", "batch_size", "epochs")) for node in nodes} == {
        (rate, batch, epochs) for rate in (5e-5, 3e-5, 2e-5) for batch in (16, 32) for epochs in (2, 3, 4)
    }
    assert len(nodes) == 18 * 3


def test_together_stands_beside_each_task_alone() -> None:
    nodes = load("together").nodes
    both = {name: node for name, node in nodes.items() if name.startswith("finetune@together")}
    assert list(both) == [f"finetune@together-{seed}" for seed in (1, 2, 3)]
    alone = {node.values["task"] for name, node in nodes.items() if node.stage == "finetune" and name not in both}
    assert set(values(both["finetune@together-1"], "tasks")[0]) == alone == {"mrpc", "rte", "stsb", "cola"}


def test_what_is_not_there_is_told_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOZE_RUNS", str(tmp_path))
    with pytest.raises(DataError, match=r"^finetune.checkpoint: nowhere/checkpoint does not exist"):
        plan(load("glue", "finetune.checkpoint=nowhere/checkpoint"))
    with pytest.raises(DataError, match=r"^vocab: nowhere does not exist"):
        plan(load("domain-adaptation", "vocab.import_path=nowhere"))


def _rows(nodes: dict[str, Node], stage: str) -> dict[str, Node]:
    return {name.partition("@")[2]: node for name, node in nodes.items() if node.stage == stage}


def test_table_5_differs_in_its_examples_and_its_last_rows_in_the_model() -> None:
    """Devlin et al. 2019, table 5."""
    nodes = load("ablation-table5").nodes
    data, trained = _rows(nodes, "dataset"), _rows(nodes, "pretrain")
    assert {row: values(node, "pairing", "masking", "copies") for row, node in data.items()} == {
        "bert": ["nsp", "token", 10], "no-nsp": ["segment-pair", "token", 10], "ltr": ["segment-pair", "none", 1],
    }  # fmt: skip
    assert {row: inputs(node) for row, node in trained.items()} == {row: {"dataset": f"dataset@{row}"} for row in data}
    assert trained["bert"].config == trained["no-nsp"].config
    assert trained["ltr"].config.model.family == "ltr"  # type: ignore[attr-defined]
    assert trained["ltr"].config.model_copy(update={"model": None}) == trained["bert"].config.model_copy(update={"model": None})
    tuned = _rows(nodes, "finetune")
    assert {row: inputs(node)["checkpoint"] for row, node in tuned.items()} == {
        "bert": "pretrain@bert", "no-nsp": "pretrain@no-nsp", "ltr": "pretrain@ltr", "ltr-bilstm": "pretrain@ltr",
    }  # fmt: skip
    assert [row for row, node in tuned.items() if values(node, "bilstm")[0]] == ["ltr-bilstm"]
    assert {row: inputs(node)["checkpoint"] for row, node in _rows(nodes, "evaluate").items()} == {
        row: f"finetune@{row}" for row in tuned
    }
    assert not any(node.config.warnings() for node in data.values())  # type: ignore[attr-defined]


def test_table_6_differs_in_the_model_s_size_alone() -> None:
    """Devlin et al. 2019, table 6; widths are a sixth of the paper's."""
    trained = _rows(load("ablation-table6").nodes, "pretrain")
    sizes = {
        row: values(node, "model")[0].model_dump(
            include={"num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size"}
        )
        for row, node in trained.items()
    }
    assert list(sizes) == ["3-768-12", "6-768-3", "6-768-12", "12-768-12", "12-1024-16", "24-1024-16"]
    for row, size in sizes.items():
        layers, width, heads = map(int, row.split("-"))
        assert size["num_hidden_layers"] == layers
        assert size["hidden_size"] == {768: 128, 1024: 192}[width]
        assert size["num_attention_heads"] == max(1, round(heads / 6))
        assert size["intermediate_size"] == 4 * size["hidden_size"]
    rest = [node.config.model_copy(update={"model": None}) for node in trained.values()]
    assert all(config == rest[0] for config in rest)


def test_table_8_differs_in_what_masks_become() -> None:
    """Devlin et al. 2019, table 8; rows are named by the shares of [MASK], the same piece, and a random one."""
    nodes = load("ablation-table8").nodes
    data = _rows(nodes, "dataset")
    assert list(data) == ["80-10-10", "100-0-0", "80-0-20", "80-20-0", "0-20-80", "0-0-100"]
    for row, node in data.items():
        masked, random, *rest = values(node, "mask_share", "random_share", "pairing", "masking", "mask_rate")
        assert row == f"{masked:.0%}-{abs(round(1 - masked - random, 9)):.0%}-{random:.0%}".replace("%", "")
        assert rest == ["nsp", "token", 0.15]
        assert inputs(nodes[f"pretrain@{row}"]) == {"dataset": f"dataset@{row}"}
    assert len({node.config.model_dump_json() for node in _rows(nodes, "pretrain").values()}) == 1


def test_bert_is_the_same_in_both_tables() -> None:
    first, second = load("ablation-table5").nodes, load("ablation-table8").nodes
    for stage in ("dataset", "pretrain", "finetune", "evaluate"):
        assert first[f"{stage}@bert"].config == second[f"{stage}@80-10-10"].config


def test_decays_branch_from_kept_steps_of_one_trunk() -> None:
    nodes = load("decay-branches").nodes
    assert {
        name: (inputs(node)["continue"], *values(node, "steps", "schedule")) for name, node in nodes.items() if "@" in name
    } == {f"pretrain@decay-{at}": (f"pretrain/checkpoints/step-{at:08d}", at // 5, "sqrt") for at in (1000, 2000, 4000)}
    assert values(nodes["pretrain"], "schedule", "milestones") == ["constant", (1000, 2000, 4000)]


def test_masks_go_on_where_reading_from_left_to_right_ended() -> None:
    nodes = load("clm-then-mlm").nodes
    assert inputs(nodes["pretrain@masks"])["continue"].startswith("pretrain")
    trained = {
        name: values(nodes[f"pretrain{name}"], "objectives", "steps") for name in ("", "@masks", "@masks-alone", "@mixture")
    }
    assert trained == {
        "": [("clm",), 2000],
        "@masks": [("mlm",), 2000],
        "@masks-alone": [("mlm",), 4000],
        "@mixture": [("clm", "mntp"), 4000],
    }
    assert {node.config.schedule_steps for node in _rows(nodes, "pretrain").values()} == {4000}  # type: ignore[attr-defined]


TINY = [
    "run.share=true",
    "run.device=cpu",
    "run.engine=torch",
    "run.zero=0",
    "run.processes=1",
    "run.workers=1",
    "run.checkpoint_every=null",
]


def run(tmp_path: Path, name: str, *settings: str, only: tuple[str, ...] = ()) -> dict[str, Any]:
    """What `cloze run` tells of a tiny version of the preset."""
    given = [SOURCES, "corpus.heldout_fraction=0.2", *TINY, *settings]
    options = [part for setting in given for part in ("--set", setting)] + [part for node in only for part in ("--only", node)]
    command = [warm.python(), "-c", warm.ENTRY, "run", name, "--no-prefect", "--json", *options]
    environment = {**os.environ, "CLOZE_RUNS": str(tmp_path / "runs"), "CLOZE_SLOTS": str(tmp_path / "slots")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200, env=environment)
    assert done.returncode == 0, done.stderr
    return {stage["node"]: stage for stage in json.loads(done.stdout.splitlines()[-1])["stages"]}


@pytest.mark.soak
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("name", "settings", "steps"),
    [
        (
            "bert-base",
            ["vocab.size=500", "dataset.length=32", "dataset@512.length=64", "dataset.copies=1", "dataset.shards=1", "pretrain.model=bert-tiny",
             "pretrain.steps=9", "pretrain@512.steps=3", "pretrain.schedule_steps=12", "pretrain.warmup_steps=2", "pretrain.global_batch=4"],
            {"pretrain": 9, "pretrain@512": 12},
        ),
        (
            "modernbert-base",
            ["vocab.size=600", "dataset.length=32", "dataset@8192.length=64", "dataset.shards=1", "pretrain.model=modern-tiny",
             "pretrain.steps=6", "pretrain@context.steps=3", "pretrain@decay.steps=3", "pretrain.warmup_steps=2", "pretrain.global_batch=4",
             "pretrain.initial_batch=2", "pretrain.ramp_steps=3", "pretrain@context.global_batch=2", "pretrain@decay.global_batch=2"],
            {"pretrain": 6, "pretrain@context": 9, "pretrain@decay": 12},
        ),
        (
            "decay-branches",
            ["vocab.size=500", "dataset.length=32", "dataset.copies=1", "pretrain.steps=8", "pretrain.warmup_steps=1", "pretrain.global_batch=4",
             "pretrain@decay.matrix.at={4: {steps: 2}, 8: {steps: 3}}"],
            {"pretrain": 8, "pretrain@decay-4": 6, "pretrain@decay-8": 11},
        ),
    ],
)  # fmt: skip
def test_a_tiny_version_runs_through_all_its_phases(
    tmp_path: Path, name: str, settings: list[str], steps: dict[str, int]
) -> None:
    made = run(tmp_path, name, *settings)
    assert {node: made[node]["steps"] for node in steps} == steps
    assert set(made["report"]["scores"]) >= {"pretrain"}
    history = (Path(made[list(steps)[-1]]["artifact"]) / "metrics.jsonl").read_text().splitlines()
    assert json.loads(history[0])["step"] > 1, "a phase's steps go on from those of the one before"


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_a_tiny_domain_adaptation_goes_three_ways(tmp_path: Path) -> None:
    small = [
        "vocab.size=500",
        "dataset.length=32",
        "dataset.copies=1",
        "dataset.shards=1",
        "pretrain.steps=4",
        "pretrain.global_batch=4",
    ]
    small += ["pretrain.warmup_steps=1"]
    before = ("name=general", "pretrain.schedule_steps=null", "pretrain.model=bert-tiny")
    general = run(tmp_path, "bert-base", *small, *before, only=("corpus", "vocab", "dataset", "pretrain"))
    path = general["pretrain"]["checkpoint"]
    settings = [
        *(one for one in small if "vocab" not in one), "dataset@scratch-512.length=64", f"pretrain.checkpoint={path}", f"vocab.import_path={path}/tokenizer",
        f"vocab@extended.extend_path={path}/tokenizer", "vocab@extended.add=20", "vocab@scratch.size=400", "pretrain@scratch.model=bert-tiny",
        "pretrain@scratch.steps=4", "pretrain@scratch.schedule_steps=6", "pretrain@scratch.global_batch=4", "pretrain@scratch.warmup_steps=1",
        "pretrain@scratch-512.steps=2", "pretrain@scratch-512.schedule_steps=6", "pretrain@scratch-512.global_batch=4", "pretrain@scratch-512.warmup_steps=1",
    ]  # fmt: skip
    made = run(tmp_path, "domain-adaptation", *settings)
    assert made["vocab@extended"]["size"] == made["vocab"]["size"] + 20
    assert {name: made[name]["steps"] for name in made if name.startswith("pretrain")} == {
        "pretrain": 4, "pretrain@extended": 4, "pretrain@scratch": 4, "pretrain@scratch-512": 6,
    }  # fmt: skip
