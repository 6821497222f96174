"""`benchmarks.gpu.levers`: its table continues after a kill, and its candidate computes attention."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.gpu import levers, stand_ins
from benchmarks.gpu.flex import FlexLayout, flexed
from benchmarks.gpu.lever_rows import BATCHES, WAYS, Built, lever_names
from benchmarks.gpu.lever_table import markdown
from benchmarks.gpu.rows import row_named
from cloze.core.stages.execution import GPU_LEVERS
from cloze.model.data.layouts import Sequences, packed
from cloze.model.layers.attention import SelfAttention
from cloze.model.layers.batch import Batch
from tests.model import flash_on_cpu as flash_on_cpu

HEAD = {"device": "none", "torch": "2.13", "tiny": False, "code": "c0de"}
NAMES = lever_names(tiny=False)
FIGURES = {
    "today_ms": 82.0, "ms": 75.0, "ratio": 1.093, "range": [1.08, 1.1], "today_mfu": 0.41,
    "mfu": 0.448, "loss": 1e-4, "memory_gb": 62.6, "sizes": 3, "note": "attention: FA4",
}  # fmt: skip


def good(name: str) -> dict[str, Any]:
    return {"row": name, "ok": True, "figures": FIGURES, "took": 1.0}


def test_every_lever_of_a_step_is_measured_alone_and_with_all_others() -> None:
    steps = {*GPU_LEVERS} - {"finetune"}  # which is a choice
    assert steps == {ways[0] for ways in WAYS.values() if len(ways) == 1}
    assert {*WAYS["all but shapes"], *WAYS["all but whole-step"]} == steps
    assert len(NAMES) == len({*NAMES}) == 4 * len(WAYS)
    for name in NAMES:
        assert callable(row_named(name))


def test_a_second_call_runs_what_is_missing_failed_or_had_no_time(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [
        good(NAMES[0]),
        {"row": NAMES[1], "ok": False, "error": "took longer than 90 s", "took": 90.0},
        {"row": NAMES[2], "ok": None, "error": levers.NO_TIME, "took": 0.0},
        {"row": NAMES[3], "ok": None, "error": "no wheel", "took": 1.0},
    ]
    text = "\n".join(map(json.dumps, [HEAD, *rows]))
    path.write_text(text + '\n{"row": "levers: half of a l')  # a kill
    found = levers.read_rows(path, HEAD)
    assert found == rows
    assert levers.missing(NAMES[:5], found) == [NAMES[1], NAMES[2], NAMES[4]]
    assert levers.read_rows(tmp_path / "none", HEAD) == []


@pytest.mark.parametrize("name", [*HEAD])
def test_rows_of_another_machine_or_other_code_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({**HEAD, name: "other"}) + "\n" + json.dumps(good(NAMES[0])))
    with pytest.raises(ValueError, match=f"{name} other.*give another"):
        levers.read_rows(path, HEAD)


def test_the_table_has_every_row_in_order_and_says_what_is_missing() -> None:
    rows = [
        good(NAMES[1]),
        {"row": NAMES[0], "ok": False, "error": "losses differ by 0.03", "took": 1.0},
        {"row": NAMES[2], "ok": None, "error": "attention: install flash-attn-4", "took": 1.0},
    ]
    lines = markdown(NAMES[:4], rows, HEAD).splitlines()[6:]
    assert [line.split(" | ")[1] for line in lines] == [*WAYS][:4]
    assert "**failed**: losses differ" in lines[0]
    assert (
        "| 82.0 | 75.0 | 1.093 | 1.080 to 1.100 | 41.0% | 44.8% | 1.0e-04 | 62.6 | 3 |" in lines[1]
    )
    assert "install flash-attn-4" in lines[2]
    assert "not run yet" in lines[3]
    assert len({line.count("|") for line in lines}) == 1


def test_the_code_is_what_is_measured() -> None:
    assert len(levers.code()) == 12 == len(levers.code())


def test_a_kernel_is_not_active_while_todays_step_runs() -> None:
    """It is the process's."""
    assert stand_ins.active_kernel() == ""
    stand_ins._active[:] = ["stand-in"]
    enter, leave = stand_ins.switch_kernel()
    assert stand_ins.active_kernel() == ""
    enter()
    leave()
    assert Built(lambda _: torch.zeros(()), None, 1).enter() is None  # type: ignore[arg-type]
    assert BATCHES > 1


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=8), st.booleans())
def test_flex_attention_is_that_of_the_kernel(lengths: list[int], fixed: bool) -> None:
    """Outputs alone: torch has no gradient of it on a CPU. Windows go to the kernel."""
    torch.manual_seed(0)
    plain = packed(Sequences.alone(np.array(lengths), max(lengths)), fixed=fixed)
    batch: Batch = {"layout": plain}  # type: ignore[typeddict-item]
    layout = flexed(batch)["layout"].fresh()
    assert isinstance(layout, FlexLayout)
    for window in (None, 7):
        attention = SelfAttention(16, 2, dropout=0.0, window=window).eval()
        hidden = torch.randn(len(plain.flat_positions), 16)
        with torch.no_grad():
            torch.testing.assert_close(
                attention(hidden, layout), attention(hidden, plain), rtol=1e-4, atol=1e-5
            )


def test_results_are_copied_where_a_borrowed_machine_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, sent = tmp_path / "own", tmp_path / "sent"
    own.mkdir()
    sent.mkdir()
    (own / "rows.jsonl").write_text("{}")
    monkeypatch.setenv("OUT", str(sent))
    levers.publish(own, "table")
    assert (sent / "results.md").read_text() == (own / "results.md").read_text() == "table"
    assert (sent / "rows.jsonl").read_text() == "{}"
