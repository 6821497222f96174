"""The page of a night's trends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cloze.flows.nightly.journal import (
    Journal,
)
from cloze.flows.nightly.result import write_trend
from tests.flows.nightly.test_journal import champion, night


def result(step: int, mean: float, run: str = "demo") -> dict[str, Any]:
    scores = {
        "sst2": {"metric": "accuracy", "mean": mean, "deviation": 0.01, "values": {"1": mean}}
    }
    return {
        "key": champion(step).key,
        "run": run,
        "training": "aaa",
        "step": step,
        "written": 0.0,
        "scores": scores,
        "perplexity": 40.0 / step,
    }


def test_the_page_tells_of_all_and_escapes_what_it_shows(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    evil = "<script>alert(1)</script> $x^{$"  # no mathematics either
    journal.append(
        night(
            champion(1, since=1.5),
            results=[result(1, 0.8, run=evil)],
            candidate=champion(1).key,
            why=evil,
        )
    )
    journal.append(night(started=86400.0, ended=86401.0))
    journal.append(
        night(
            champion(2, since=90000),
            results=[result(2, 0.9)],
            failed={champion(3).key: evil},
            started=89000.0,
            ended=90001.0,
        )
    )
    page = write_trend(journal, "Europe/Zurich").read_text()
    assert "<script" not in page
    assert page.count("&lt;script&gt;") == 5  # run, also beside its two points; reason; failure
    assert "1970-01-02 01:43" in page  # 89,000 s after the epoch, an hour east
    assert page.count("<svg") == 2  # the task, the perplexity
    assert "why 2" in page
    assert "1 run had no new checkpoints" in page
    assert "http://www.w3.org" in page  # the SVG's names; nothing else leads out
    assert "https:" not in page.replace("https://www.w3.org", "")


def test_one_night_is_a_sentence_and_no_plot(tmp_path: Path) -> None:
    """A plot of one date showed a dot, and a line of the champion from nowhere."""
    journal = Journal(tmp_path)
    journal.append(night(champion(1), results=[result(1, 0.8), result(2, 0.7)], ended=9.0))
    page = write_trend(journal, "UTC").read_text()
    assert "<svg" not in page
    assert page.count("One night has scores so far, in the table below") == 2
    assert "sst2 80.0" in page
    journal.append(night(results=[result(3, 0.9)], started=86400.0, ended=86401.0))
    page = write_trend(journal, "UTC").read_text()
    assert page.count("<svg") == 2
    assert "One night" not in page


def test_a_long_path_of_a_sentence_breaks_after_its_slashes(tmp_path: Path) -> None:
    """Browsers break it between letters elsewhere, where a column is narrow."""
    journal = Journal(tmp_path)
    path = "/data/team/runs/demo/finetune-0123456789ab/_logs/rank0.log"
    journal.append(
        night(
            champion(1, since=1.5),
            results=[result(1, 0.8)],
            candidate=champion(1).key,
            why=f"promoted; see {path}",
            failed={champion(3).key: f"rank 0 failed; see {path}"},
        )
    )
    page = write_trend(journal, "UTC").read_text()
    assert page.count(path.replace("/", "/<wbr>")) == page.count("see /<wbr>") >= 2
    assert f"see {path}" not in page
