"""A run's config: sections, paths, presets, and overrides on top."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloze.core.errors import UsageError
from cloze.flows.graph import config as configs
from cloze.flows.graph.overrides import parse


def load(path: str, *settings: str) -> configs.RunConfig:
    return configs.load(path, parse(settings, "section.key=value", sections=True))


def test_sections_are_in_the_order_of_the_table(toy_config: str) -> None:
    Path(toy_config).write_text("count: {}\nletters:\nrun: {workers: 3}\n")
    config = load(toy_config)
    assert list(config.nodes) == ["letters", "count"]
    assert (config.name, config.execution.workers) == ("toy", 3)
    assert config.dump()["letters"] == {"size": 3, "source": None, "told": None}


def test_overrides_go_on_top_and_bring_sections_in(toy_config: str) -> None:
    Path(toy_config).write_text("letters: {size: 4}\n")
    config = load(toy_config, "letters.size=7", "count.fault=x", "name=2024-01-01", "run.workers=2")
    assert config.dump()["letters"]["size"] == 7
    assert (list(config.nodes), config.name, config.execution.workers) == (
        ["letters", "count"],
        "2024-01-01",
        2,
    )


def test_a_section_is_left_out_by_false(toy_config: str) -> None:
    assert list(load(toy_config, "count=false").nodes) == ["letters"]
    with pytest.raises(UsageError, match="stage count needs stage letters"):
        load(toy_config, "letters=false")


def test_a_date_in_a_file_is_text_too(toy_config: str) -> None:
    Path(toy_config).write_text("name: 2024-01-01\nletters: {}\n")
    assert load(toy_config).dump()["name"] == "2024-01-01"


def test_paths_of_a_file_begin_beside_it_and_those_typed_where_one_stands(
    toy_config: str, tmp_path: Path
) -> None:
    Path(toy_config).write_text("letters: {source: texts/a.txt}\ntokenizer: vocab.txt\n")
    config = load(toy_config)
    assert config.dump()["letters"]["source"] == str(tmp_path / "texts" / "a.txt")
    assert config.tokenizer == str(tmp_path / "vocab.txt")
    assert load(toy_config, "letters.source=b.txt").dump()["letters"]["source"] == "b.txt"
    Path(toy_config).write_text("letters: {source: 's3://bucket/a.txt'}\n")
    assert load(toy_config).dump()["letters"]["source"] == "s3://bucket/a.txt"


@pytest.mark.parametrize(
    ("text", "settings", "sentence"),
    [
        ("leters: {}", [], "did you mean 'letters'"),
        ("letters: {}", ["leters.size=3"], "did you mean 'letters'"),
        ("letters: {sise: 3}", [], "did you mean 'size'"),
        ("letters: 3", [], r"config section letters \(3\) must be a mapping"),
        ("run: {}", [], "names no stage"),
        ("- a", [], "must contain a mapping"),
        ("letters: {", [], "not valid YAML"),
    ],
)
def test_a_mistake_is_told(toy_config: str, text: str, settings: list[str], sentence: str) -> None:
    Path(toy_config).write_text(text)
    with pytest.raises(UsageError, match=sentence):
        load(toy_config, *settings)


def test_an_unknown_name_is_told_with_the_nearest_preset() -> None:
    with pytest.raises(UsageError, match="did you mean 'demo'"):
        configs.load("dmeo")


def test_a_key_below_the_model_of_a_preset_keeps_the_preset() -> None:
    """`sample` says `model: bert-tiny`."""
    config = load("sample", "pretrain.model.hidden_dropout=0")
    model = config.dump()["pretrain"]["model"]
    assert (model["hidden_dropout"], model["hidden_size"], model["num_hidden_layers"]) == (
        0,
        128,
        2,
    )


def test_a_file_extends_a_preset_by_name_or_a_file_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each relative path is relative to the file that has it; a preset's to the directory of use."""
    (tmp_path / "use" / "glue" / "RTE").mkdir(parents=True)
    for split in ("train", "dev"):
        (tmp_path / "use" / "glue" / "RTE" / f"{split}.tsv").touch()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "top.yaml").write_text("extends: glue\nfinetune: {checkpoint: ./made}\n")
    (tmp_path / "top.yaml").write_text("extends: mine/top.yaml\nname: top\n")
    monkeypatch.chdir(tmp_path / "use")
    finetune = next(
        node for node in configs.load("../top.yaml").nodes.values() if node.stage == "finetune"
    )
    assert finetune.config.data == str(tmp_path / "use" / "glue")  # type: ignore[attr-defined]
    assert finetune.inputs["checkpoint"].path == str(tmp_path / "mine" / "made")
    (tmp_path / "sample.yaml").write_text("extends: sample\nname: sample\n")
    loaded = configs.load(str(tmp_path / "sample.yaml")).dump()["corpus"]
    assert loaded == configs.load("sample").dump()["corpus"]
    assert Path(loaded["sources"][1]["path"]).is_dir()


def test_a_file_that_extends_itself_is_refused(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / f"{name}.yaml").write_text(f"extends: {other}.yaml\nname: {name}\n")
    with pytest.raises(UsageError, match=r"a\.yaml extends itself; name another file in extends"):
        configs.load(str(tmp_path / "a.yaml"))


SIZED = (
    "letters: {size: 4, told: {by: base}}\ncount: {}\n"
    "sizes: {big: {letters: {size: 40, told: {by: big}}, count: false}, same: {}}\n"
)


@pytest.mark.parametrize(
    ("top", "settings", "letters"),
    [
        ("size: big\n", [], (40, "big")),
        ("size: big\nletters: {size: 7}\n", [], (7, "big")),
        ("letters: {size: 7}\n", ["size=big"], (7, "big")),
        ("letters: {size: 7}\n", [], (7, "base")),
        ("size: same\n", ["size=big"], (40, "big")),
        ("size: big\nletters: {size: 7}\nsizes: {big: {letters: {size: 8}}}\n", [], (8, "big")),
        (
            "size: mine\nletters: {told: {by: top}}\nsizes: {mine: {letters: {size: 8}}}\n",
            [],
            (8, "top"),
        ),
        ("size: big\nletters: {size: 7}\n", ["letters.size=9"], (9, "big")),
    ],
)
@pytest.mark.parametrize("between", ["", "name: between\n"])
def test_what_a_file_says_counts_over_the_size_of_what_it_extends(
    toy_config: str, tmp_path: Path, top: str, settings: list[str], letters: tuple[int, str],
    between: str,
) -> None:  # fmt: skip
    (tmp_path / "base.yaml").write_text(SIZED)
    below = "between" if between else "base"
    (tmp_path / "between.yaml").write_text(f"extends: base.yaml\n{between}")
    Path(toy_config).write_text(f"extends: {below}.yaml\n{top}")
    made = load(toy_config, *settings).dump()["letters"]
    assert (made["size"], made["told"]["by"]) == letters


@pytest.mark.parametrize("section", ["{fault: x}", "{}"])
def test_a_section_that_a_size_switches_off_is_refused_or_switched_on(
    toy_config: str, tmp_path: Path, section: str
) -> None:
    (tmp_path / "base.yaml").write_text(SIZED)
    Path(toy_config).write_text(f"extends: base.yaml\nsize: big\ncount: {section}\n")
    with pytest.raises(UsageError, match=r"^count(\.fault)? is set, but count is switched off"):
        load(toy_config)
    Path(toy_config).write_text("extends: base.yaml\nsize: big\ncount: true\n")
    assert "count" in load(toy_config).nodes


def test_a_paper_s_corpus_beside_its_checkpoint_is_refused(tmp_path: Path) -> None:
    """It was dropped without a word."""
    path = tmp_path / "mine.yaml"
    text = "extends: bert-table2\nsize: paper\n"
    path.write_text(f"{text}corpus: {{sources: [{{kind: text, path: T}}]}}\n")
    with pytest.raises(UsageError, match=r"^corpus.sources is set, .* from finetune.checkpoint"):
        configs.read(str(path))
    path.write_text("extends: bert-table5\npretrain: {steps: 7}\n")
    assert configs.read(str(path))["pretrain"]["steps"] == 7
