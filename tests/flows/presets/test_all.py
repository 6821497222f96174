"""Every preset is a graph, and says in one sentence what it lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloze.core.errors import DataError, UsageError
from cloze.flows.graph import config as configs
from cloze.flows.graph.plan import plan
from tests.flows.presets.reading import OF_A_CHECKPOINT, WITHOUT_TEXT, Load


@pytest.mark.parametrize("name", configs.preset_names())
def test_every_preset_is_a_graph_under_its_own_name(name: str, load: Load) -> None:
    config = load(name)
    assert config.name == name
    for place, node in enumerate(config.nodes.values()):
        assert all(list(config.nodes).index(parent) < place for parent in node.depends_on)
    first = "finetune" if name in OF_A_CHECKPOINT else "corpus"
    assert {first, "report"} <= {node.stage for node in config.nodes.values()}


def test_a_preset_is_written_for_readers() -> None:
    files = [path for room in ("flows", "labs") for path in Path(room).rglob("presets/**/*.yaml")]
    assert len(files) > 50
    lines = ((path, line) for path in files for line in path.read_text("utf-8").splitlines())
    assert [f"{path}: {line}" for path, line in lines if len(line) > 100] == []


@pytest.mark.parametrize(
    "name", sorted(set(configs.preset_names()) - WITHOUT_TEXT - OF_A_CHECKPOINT)
)
def test_presets_with_text_name_files_that_are_there(name: str, load: Load) -> None:
    corpora = [node.config for node in load(name).nodes.values() if node.stage == "corpus"]
    assert corpora
    for source in (source for config in corpora for source in config.sources):  # type: ignore[attr-defined]
        assert source.kind == "docstrings" or Path(source.path).exists()


@pytest.mark.parametrize("name", sorted(WITHOUT_TEXT))
def test_without_text_one_sentence_says_how_to_give_it(name: str, load: Load) -> None:
    with pytest.raises(UsageError) as caught:
        configs.load(name)
    assert str(caught.value) == (
        "corpus.sources is missing; give it: --set corpus.sources='[{kind: wikipedia, path: "
        "DUMP.xml.bz2}]'"
    )


def test_what_is_not_there_is_told_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: Load
) -> None:
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(tmp_path))
    with pytest.raises(DataError, match=r"^finetune.checkpoint: nowhere/checkpoint does not exist"):
        plan(load("glue", "finetune.checkpoint=nowhere/checkpoint"))
    with pytest.raises(DataError, match=r"^vocab: nowhere does not exist"):
        plan(load("domain-adaptation", "vocab.import_path=nowhere"))


@pytest.mark.parametrize("key", ["corpus.sources=[{kind: text, path: x}]", "pretrain.steps=5"])
@pytest.mark.parametrize(
    "name",
    "bert-table2 bert-table3 bert-table4 peters-table2 roberta-table5 roberta-table6 roberta-table7".split(),
)
def test_a_table_of_a_checkpoint_says_so_if_text_is_given(name: str, key: str, load: Load) -> None:
    with pytest.raises(UsageError) as caught:
        load(name, "size=paper", key)
    field = key.partition("=")[0]
    section = field.partition(".")[0]
    assert f"{field} is set, but {section} is switched off here ({section}: false)" in str(
        caught.value
    )
    assert "finetune starts from finetune.checkpoint (" in str(caught.value)


def test_a_section_that_a_file_switches_off_takes_no_field(tmp_path: Path) -> None:
    path = tmp_path / "off.yaml"
    path.write_text("extends: demo\nfinetune: false\n")
    with pytest.raises(UsageError, match=r"^finetune.epochs is set, but finetune is switched off"):
        configs.read(str(path), {"finetune": {"epochs": 1}})
    assert configs.read(str(path), {"finetune": True})["finetune"] is True


@pytest.mark.parametrize(
    ("name", "is_filled"),
    [
        ("roberta-table6", False),
        ("bert-table2", False),  # its cells name both stages
        ("before-bert", False),
        ("albert-table4", False),
        ("albert-table5", True),  # by figures of the pretrainings
        ("domain-ways", True),  # by bits per byte
    ],
)
def test_a_table_without_any_of_its_tasks_is_refused(
    name: str, is_filled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = configs.load(name)
    if is_filled:
        config.check_scored()
        return
    with pytest.raises(UsageError, match=r"no cell of the table .* does not exist\); name another"):
        plan(config)
    assert plan(config, until=["vocab"])


@pytest.mark.parametrize("name", ["roberta-table6", "albert-table4"])
def test_a_table_with_one_of_its_tasks_is_planned(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, glue: Path
) -> None:
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(tmp_path))
    task = {"roberta-table6": "squad"}.get(name, "mnli")
    files = configs.samples_directory() / "tasks" / "squad" if task == "squad" else glue
    configs.load(name, {"finetune": {"data": str(files.parent)}}).check_scored()
