"""The pages link each other, keep words whole, say their zone, and follow a dark screen."""

from __future__ import annotations

import io
import json
import re
import shutil
from html import escape
from pathlib import Path
from urllib.parse import quote

import pytest
from rich.console import Console
from starlette.testclient import TestClient

from cloze.core.humanize import templates_in
from cloze.flows.nightly.journal import Journal
from cloze.flows.nightly.result import render_trend
from cloze.flows.report.graph_picture import NodePicture, graph_svg
from cloze.flows.report.page import render
from cloze.flows.report.plots import bars
from cloze.flows.report.report_nodes import scores
from cloze.flows.run.status_file import all_records
from cloze.flows.tracking import spool_state
from cloze.flows.ui.dashboard import application, run_rows
from cloze.flows.views.run_tables import show_runs
from tests.flows.nightly.test_journal import night
from tests.flows.nightly.test_trend_page import result
from tests.flows.report import test_page as reports

ROOT = Path(__file__).parents[3] / "flows"
TEMPLATES = (
    "ui/templates/page.html",
    "nightly/templates/trend.html",
    "report/templates/report.html",
)


@pytest.fixture
def site(tmp_path: Path) -> TestClient:
    (tmp_path / "sample" / "_status").mkdir(parents=True)
    node = {"stage": "corpus", "state": "cached"}
    record = {"run": "sample", "state": "finished", "pid": 1, "host": "h", "started": 1e9}
    record |= {"ended": 1e9 + 0.1, "nodes": {"corpus": {"artifact": "a", **node}}}
    (tmp_path / "sample" / "_status" / "1-a.json").write_text(json.dumps(record))
    client = TestClient(application(tmp_path, 8090), base_url="http://127.0.0.1:8090")
    client.runs = tmp_path  # type: ignore[attr-defined]
    return client


def test_the_dashboard_leads_to_the_nights_and_to_reports_and_both_lead_back(
    site: TestClient,
) -> None:
    runs: Path = site.runs  # type: ignore[attr-defined]
    assert site.get("/trend").status_code == site.get("/report/sample").status_code == 404
    assert "/trend" not in site.get("/").text
    for number, name in enumerate(("report-aaa", "report-bbb")):
        page = runs / "sample" / name / "report.html"
        page.parent.mkdir()
        page.write_text(f"<html><main>report {number}</main></html>")
    Journal(runs).trend.parent.mkdir()
    Journal(runs).trend.write_text("<html><main>the nights</main></html>")
    page_text = site.get("/").text
    for link, content in (("/trend", "the nights"), ("/report/sample", "report 1")):
        assert f'href="{link}"' in page_text
        answer = site.get(link)
        assert content in answer.text
        assert '<a href="/">Runs</a>' in answer.text
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "script-src" not in answer.headers["content-security-policy"]
    for name in ("../sample", "..%2Fsample", "other", ".night", "sample%2Freport-aaa"):
        assert site.get(f"/report/{name}").status_code == 404


def test_a_run_of_two_parts_has_its_pages(site: TestClient) -> None:
    runs: Path = site.runs  # type: ignore[attr-defined]
    (runs / "alice").mkdir()
    shutil.copytree(runs / "sample", runs / "alice" / "größe")
    page = runs / "alice" / "größe" / "report-aaa" / "report.html"
    page.parent.mkdir()
    page.write_text("<html><main>alice's report</main></html>")
    link = f"/report/alice/{quote('größe')}"
    assert f'href="{link}"' in site.get("/").text
    assert "alice's report" in site.get(link).text
    assert f'<a href="{link}">report</a>' in site.get(link).text
    for name in ("alice", "größe", "alice/größe/report-aaa", "alice/../sample"):
        assert site.get(f"/report/{name}").status_code == 404


def test_links_beside_each_other_do_not_read_as_one(site: TestClient) -> None:
    runs: Path = site.runs  # type: ignore[attr-defined]
    for page in ("report-aaa/report.html", "corpus-bbb/card.html"):
        (runs / "sample" / page).parent.mkdir()
        (runs / "sample" / page).write_text("<main></main>")
    row = site.get("/").text.partition('class="runs"')[2].partition("</table>")[0]
    said = " ".join(re.sub("<[^>]*>", "", row.partition("</th></tr>")[2]).split())
    assert said.startswith("sample · report · card finished")
    assert '</a> · <a href="/card/sample">card</a>' in site.get("/report/sample").text
    assert '</a> · <a href="/report/sample">report</a>' in site.get("/card/sample").text


def test_a_rerun_from_a_terminal_keeps_the_link_to_prefect(tmp_path: Path) -> None:
    directory = tmp_path / "sample" / "_status"
    directory.mkdir(parents=True)
    starts = [(1, "first", "finished"), (2, "newest", "finished"), (3, None, "cached")]
    for number, flow_run, state in starts:
        record = {"run": "sample", "state": "finished", "pid": 1, "host": "h", "started": 1e9}
        record |= {"ended": 2e9, "prefect": flow_run, "nodes": {}}
        record["nodes"]["corpus"] = {"state": state, "artifact": "a"}
        (directory / f"{number}-a.json").write_text(json.dumps(record))
    [row] = run_rows(tmp_path, {"prefect": "http://127.0.0.1:4200"})
    assert (row["link"], row["took"]) == ("http://127.0.0.1:4200/runs/flow-run/newest", "cached")
    [row] = run_rows(tmp_path, {})
    assert not row["link"]
    text = io.StringIO()
    show_runs(Console(file=text, width=100), all_records(tmp_path))
    assert "cached" in text.getvalue()


def test_a_rerun_of_finished_work_is_cached_and_times_have_their_zone(site: TestClient) -> None:
    page = site.get("/").text
    assert '<td class="n">cached</td>' in page
    assert re.search(r"<th>started \([A-Z+0-9-]+\)</th>", page)


@pytest.mark.parametrize("name", TEMPLATES)
def test_no_page_breaks_words_between_letters_and_each_has_a_dark_screen(name: str) -> None:
    text = (ROOT / name).read_text()
    assert "overflow-wrap:anywhere" not in text
    assert "break-all" not in text
    assert '{% include "style.css" %}' in text
    text += (ROOT.parent / "core" / "templates" / "style.css").read_text()
    assert "prefers-color-scheme: dark" in text
    used = set(re.findall(r"var\(--([a-z]+)\)", text))
    light, dark = text.split("prefers-color-scheme: dark", 1)
    for name in used - {"mono"}:
        assert f"--{name}:" in light
        assert f"--{name}:" in dark.split("}", 1)[0]


def test_charts_say_what_they_show_to_those_who_do_not_see_them() -> None:
    nodes = reports.single()
    trend = render_trend([night(results=[result(1, 0.5)])] * 2, [], "UTC")
    for page in (render(nodes, scores(nodes), []), trend):
        charts = re.findall("<svg[^>]*>", page)
        assert charts
        for chart in charts:
            assert 'role="img"' in chart
            assert re.search('aria-label="[^"]{5,}"', chart)
    assert 'aria-label="MLM loss (nats) by step"' in render(nodes, scores(nodes), [])


def test_text_of_a_chart_stays_text() -> None:
    assert 'aria-label="&lt;b&gt; &quot;score&quot;"' in bars({"a": 0.5}, '<b> "score"')


def test_charts_take_the_colours_of_their_page() -> None:
    for svg in (
        bars({"a": 0.5, "b": 0.25}, "score"),
        graph_svg({"a": NodePicture(stage="corpus", line="x")}),
        render_trend([{"results": [result(1, 0.5)], "failed": {}, "started": 1.0, "ended": 2.0,
                       "why": "kept", "candidate": ""}] * 2, [], "UTC"),
    ):  # fmt: skip
        drawing = svg[svg.index("<svg") :]
        bare = re.sub(r"var\(--[a-z]+, #[0-9a-f]{6}\)", "", drawing)
        assert "var(--" in drawing
        assert not re.findall("#1f2933|#2563a8|#2f855a", bare)


def test_a_point_of_the_trend_has_its_checkpoint_beside_it() -> None:
    night = {"failed": {}, "why": "kept", "candidate": ""}
    nights = [
        {**night, "results": [result(step, 0.5)], "started": step, "ended": step}
        for step in range(1, 10)
    ]
    few, many = render_trend(nights[:3], [], "UTC"), render_trend(nights, [], "UTC")
    assert all(f">demo {step}<" in few for step in (1, 2, 3))
    assert ">demo 9<" in many
    assert ">demo 8<" not in many
    equal = {**night, "results": [result(1, 0.5), result(2, 0.5)], "started": 1.0, "ended": 1.0}
    assert ">demo 1, demo 2<" in render_trend([equal, equal], [], "UTC")  # not one over the other


def test_a_report_names_its_run_and_an_empty_one_is_no_error() -> None:
    page = render([], {}, [])
    assert "<title>: Cloze report</title>" in page
    assert templates_in(ROOT / "report" / "templates")
    assert "max-width:100%" in (ROOT / TEMPLATES[2]).read_text()  # the graph is whole


def test_mlflows_link_opens_the_list_of_runs_in_the_mode_for_training(tmp_path: Path) -> None:
    server = "http://127.0.0.1:5000/"
    home = spool_state.home(tmp_path, server)
    assert home == "http://127.0.0.1:5000/#/experiments?workflowType=machine_learning"
    spool_state.write_ids(tmp_path, "a/b", "7", "m1")
    home = spool_state.home(tmp_path, server)
    assert home == "http://127.0.0.1:5000/#/experiments/7/runs?workflowType=machine_learning"


@pytest.mark.parametrize(
    "address",
    ["/report/gone", "/card/sample", "/trend", "/nothing", "/report/<b>x</b>", "/a/b/c/d"],
)
def test_an_address_without_a_page_says_why_and_links_back(site: TestClient, address: str) -> None:
    """As an old link to a run that was deleted since."""
    answer = site.get(address)
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert '<a href="/">Runs</a>' in answer.text
    assert "deleted or renamed, or has not written this page yet" in answer.text
    assert escape(address) in answer.text
    assert "<b>" not in answer.text
