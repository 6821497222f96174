"""`cloze latency`: each combination is measured, in alternation, and what is missing is said."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cloze.core.artifacts.artifact import read_manifest
from cloze.core.errors import DataError
from cloze.core.stages.execute import execute
from cloze.core.stages.execution import Execution
from cloze.flows.cli import cloze, main
from cloze.flows.report.report_nodes import NodePlacement, ReportNode
from cloze.labs.costs import measure
from cloze.labs.costs.command import SECTION
from cloze.labs.costs.measure import EnergyMeter
from cloze.labs.costs.stage import LATENCY, LatencyConfig
from tests.tiny_models import write_checkpoint, write_classifier

FAST = {"lengths": (8, 16), "batch_sizes": (1, 3), "thread_counts": (1,), "passes": 12}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    place = tmp_path_factory.mktemp("models")
    return {
        "small": write_checkpoint(place / "small", place / "pieces"),
        "large": write_checkpoint(place / "large", place / "pieces2", num_hidden_layers=12),
        "tuned": write_classifier(place / "tuned", place / "pieces3"),
    }


def measured(out: Path, checkpoint: str, champion: str = "", **config: Any) -> dict[str, Any]:
    inputs = {"checkpoint": checkpoint} | ({"champion": champion} if champion else {})
    settings = LatencyConfig(**{**FAST, **config})
    execute(LATENCY, settings, inputs, str(out), execution=Execution(device="cpu"))
    return json.loads((out / "metrics.json").read_text())


def test_each_combination_in_order(models: dict[str, str], tmp_path: Path) -> None:
    content = measured(tmp_path / "out", models["small"])
    places = [(one["length"], one["batch_size"], one["threads"]) for one in content["cells"]]
    assert places == [(8, 1, 1), (8, 3, 1), (16, 1, 1), (16, 3, 1)]
    for one in content["cells"]:
        assert len(one["own_times_ms"]) == one["passes"] == 12
        low, high = one["latency_ms_interval"]
        assert 0 < low <= one["latency_ms"] <= high <= one["latency_p99_ms"]
        assert "latency_ratio" not in one
    weights = sum(entry.stat().st_size for entry in Path(models["small"]).glob("*.safetensors"))
    assert content["bytes"] == 4 * content["parameters"]
    assert 0 < weights - content["bytes"] < 20_000  # the file's header


def test_pairs_alternate_and_a_larger_model_is_slower(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[int] = []
    plain = measure.encode

    def watched(encoder: Any, *inputs: Any) -> Any:
        order.append(len(encoder.layers))
        return plain(encoder, *inputs)

    monkeypatch.setattr(measure, "encode", watched)
    one_cell = {"lengths": (16,), "batch_sizes": (1,), "passes": 60}
    content = measured(tmp_path / "out", models["large"], models["small"], **one_cell)
    (one,) = content["cells"]
    assert order[:6] == [12, 2] * 3  # not timed
    assert order[6:14] == [12, 2, 2, 12, 12, 2, 2, 12]
    assert len(one["champion_times_ms"]) == len(one["own_times_ms"])
    assert one["latency_ratio"] > 1  # six times the layers


def test_a_model_against_itself_cannot_be_told_apart(
    models: dict[str, str], tmp_path: Path
) -> None:
    one_cell = {"lengths": (16,), "batch_sizes": (1,), "passes": 40}
    content = measured(tmp_path / "out", models["small"], models["small"], **one_cell)
    low, high = content["cells"][0]["latency_ratio_interval"]
    said = [note for note in content["notes"] if note.startswith("too noisy to tell")]
    assert bool(said) == (low <= 1 <= high)


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_other_precisions_and_a_fine_tuned_model(
    precision: str, models: dict[str, str], tmp_path: Path
) -> None:
    content = measured(tmp_path / "out", models["tuned"], precision=precision, lengths=(8,))
    assert content["precision"] == precision
    assert len(content["cells"]) == 2


def test_lengths_above_the_maximum_are_cut_once_and_said(
    models: dict[str, str], tmp_path: Path
) -> None:
    content = measured(tmp_path / "out", models["small"], lengths=(16, 64, 128), batch_sizes=(1,))
    assert [one["length"] for one in content["cells"]] == [16, 32]
    cut = "lengths above 32 are cut to it: the models read no more"
    assert cut in content["notes"]
    fast = {"batch_sizes": (1,), "passes": 10}
    content = measured(tmp_path / "one", models["small"], lengths=(512,), **fast)
    assert ([one["length"] for one in content["cells"]], cut in content["notes"]) == ([32], True)
    content = measured(tmp_path / "twice", models["small"], lengths=(16, 16), **fast)
    assert ([one["length"] for one in content["cells"]], cut in content["notes"]) == ([16], False)


# Energy: counters as the kernel writes them, in a directory of files.


def package(root: Path, name: str, microjoules: int, largest: int = 1_000_000) -> Path:
    (root / name).mkdir(parents=True)
    (root / name / "energy_uj").write_text(f"{microjoules}\n")
    (root / name / "max_energy_range_uj").write_text(f"{largest}\n")
    return root / name / "energy_uj"


def test_energy_is_that_of_the_packages_and_survives_a_restart(tmp_path: Path) -> None:
    one = package(tmp_path, "intel-rapl:0", 100)
    two = package(tmp_path, "intel-rapl:1", 999_990)
    package(tmp_path, "intel-rapl:0:0", 5)  # the cores of a package, which it counts, too
    meter = EnergyMeter(tmp_path)
    before = meter.read()
    one.write_text("350\n")
    two.write_text("40\n")
    assert (meter.absent, before, meter.since(before)) == ("", [100, 999_990], 250 + 50)


def test_energy_is_measured_where_it_is_counted(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter, plain = package(tmp_path / "cap", "intel-rapl:0", 0), measure.encode

    def watched(*inputs: Any) -> Any:
        counter.write_text(str(int(counter.read_text()) + 6000))
        return plain(*inputs)

    monkeypatch.setattr(measure, "encode", watched)
    monkeypatch.setattr(EnergyMeter.__init__, "__defaults__", (tmp_path / "cap",))
    content = measured(tmp_path / "out", models["small"], lengths=(8,))
    # 6 mJ a pass, of one and of three sequences
    assert [one["energy_mj"] for one in content["cells"]] == [6.0, 2.0]
    assert not any("energy" in note for note in content["notes"])


def test_what_keeps_energy_from_being_measured_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "there are no counters" in EnergyMeter(tmp_path / "nowhere").absent
    package(tmp_path, "intel-rapl:0", 100)
    monkeypatch.setattr("os.access", lambda *_: False)
    assert "root alone reads the counters" in EnergyMeter(tmp_path).absent
    assert EnergyMeter(tmp_path).since([]) == 0


# Command and report.


def test_the_command_prints_a_table_and_one_object(models: dict[str, str]) -> None:
    options = ["--lengths", "8", "--batch-sizes", "1", "--thread-counts", "1", "--passes", "10"]
    place = [models["large"], "--against", models["small"], "--device", "cpu"]
    shown = CliRunner().invoke(cloze, ["latency", *place, *options])
    assert shown.exit_code == 0, shown.output
    assert "other's" in shown.stdout
    assert re.search(r"\d \([\d.e+]+ to [\d.e+]+\)", shown.stdout), "no interval is broken in two"
    answer = CliRunner().invoke(cloze, ["latency", *place, *options, "--json"])
    content = json.loads(answer.stdout.splitlines()[-1])
    assert content["cells"][0]["length"] == 8
    assert "artifact" not in content


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--lengths", "0"], "length"),
        (["--passes", "3"], "passes"),
        (["--seconds", "0"], "seconds"),
        (["--precision", "int4"], "precision"),
    ],
)
def test_bad_options_are_one_sentence(
    arguments: list[str],
    words: str,
    models: dict[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["latency", models["small"], *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_directory_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(DataError, match="checkpoint"):
        measured(tmp_path / "out", str(tmp_path))


def test_the_report_has_a_table_of_each_node(models: dict[str, str], tmp_path: Path) -> None:
    measured(tmp_path / "out", models["large"], models["small"], lengths=(8,))
    node = ReportNode(
        name="latency@x",
        path=str(tmp_path / "out"),
        manifest=read_manifest(str(tmp_path / "out")),
        placement=NodePlacement(section="latency"),
    )
    assert SECTION.tables is not None
    (table,), figure = SECTION.tables(None, [node])
    assert (table.title, figure, len(table.rows)) == ("Latency: latency@x", "", 2)
    assert table.columns[:4] == ["length", "batch size", "threads", "p50 ms"]
    assert "of weights." in table.notes[0]
    assert all(note.endswith(".") for note in table.notes)
