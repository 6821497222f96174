"""Pages with the names and figures that people have, as a browser lays them out: nothing is cut,
no word is broken between letters, and all text can be read on a light and on a dark screen.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from cloze.flows.nightly.journal import Change, Journal
from cloze.flows.nightly.result import render_trend
from cloze.flows.report.page import render
from cloze.flows.report.report_nodes import scores
from cloze.flows.ui.dashboard import application
from cloze.labs.inside.attention_page import AttentionPage
from cloze.labs.serving.http.page import render as try_models
from tests.flows.nightly.test_journal import champion, night
from tests.flows.nightly.test_trend_page import result
from tests.flows.report import test_page as reports
from tests.flows.ui.test_page import crown, write_run

playwright_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
SWEEP = "albert-wd0.01-" + "lr0.0004-bs256-" * 6 + "seed42-len512-x"
NAMES = (SWEEP, "x" * 120, "تجربة-العربية-الكبيرة", "中文预训练模型第一次运行", "p$x^{$")
WIDTHS = (390, 768, 1280, 1600)
NAN = float("nan")
FAULTS = (Path(__file__).parent / "page_faults.js").read_text()


def dashboard(place: Path) -> str:
    for name in NAMES:
        write_run(place, name, error=f"the loss is nan at step 12 of {name}: lower the rate")
    crown(place, run=SWEEP, why="x" * 120, checkpoint=f"/c/{'x' * 120}", scores={NAMES[3]: NAN})
    client = TestClient(application(place, 8090), base_url="http://127.0.0.1:8090")
    return str(client.get("/").text)


def trend(place: Path) -> str:
    results = [result(1000 * step, 0.5, run) for step, run in enumerate(NAMES, 1)]
    results[1]["perplexity"] = NAN
    results[2]["scores"]["sst2"]["mean"] = NAN
    reign = dataclasses.replace(champion(1, since=1.5), run=SWEEP)
    change = Change(time=1.5, kind="night", champion=reign, replaced=reign, why="x" * 120)
    failed = {"b" * 64 + "/checkpoints/step-00000100": "not a number: " + "x" * 120}
    line = night(results=results, candidate=results[0]["key"], why=SWEEP, failed=failed)
    return render_trend([line, line], [change], "Europe/Berlin")


def report(place: Path) -> str:
    nodes = reports.single()[:3]
    nodes[0].manifest.counters["dropped/" + "x" * 120] = 7
    for name in NAMES:
        summary = {"metric": "accuracy", "metrics": {"accuracy": 0.5, "majority": NAN}}
        values: dict[str, Any] = {"values": {"row": name}}
        inputs, checkpoint = {"dataset": "dataset"}, {"checkpoint": f"pretrain@{name}"}
        trained = reports.gathered(
            f"pretrain@{name}", reports.PRETRAIN, "", reports.HISTORY, inputs=inputs, **values
        )
        tuned = reports.gathered(f"finetune@{name}", summary, inputs=checkpoint, **values)
        nodes += [trained, tuned]
    return render(nodes, scores(nodes), [])


def try_page(place: Path) -> str:
    text = f"{NAMES[3]} {'x' * 120} {NAMES[2]}"
    ends = [len(text[:end].rstrip()) for end in (len(NAMES[3]), len(NAMES[3]) + 121, len(text))]
    starts = [0, ends[0] + 1, ends[1] + 1]
    tokens = [
        {"field": field, "text": text[start:end], "start": start, "end": end, "score": score}
        for field in ("text", "second")
        for start, end, score in zip(starts, ends, (1.0, -0.7, 0.2), strict=True)
    ]
    explanation = {
        "label": "x" * 120, "logit": 1.5, "baseline": -0.5, "tokens": tokens,
        "context": {"text": 0.4, "second": 0.6},
    }  # fmt: skip
    predictions = [{"label": "x" * 120, "score": 0.5}, {"label": NAMES[3], "score": 0.5}]
    answer = {"predictions": predictions, "explanation": explanation, "explain_ms": 11.4}
    info = {"verb": "classify", "explains": True, "example": {"text": NAMES[3]}}
    served: Any = SimpleNamespace(name="sst2", version="x" * 120, info=info)
    form = {"model": "sst2", "text": text, "explain": "on"}
    page = try_models({"sst2": served}, form, answer, "an empty 'text'", 12.3)
    return bytes(page.body).decode()


def attention(place: Path) -> str:
    tokens = ["[CLS]", "x" * 60, "中文", "العربية", "##ing", "[SEP]"]
    maps = np.random.default_rng(0).dirichlet(np.ones(6), (2, 12, 6)).tolist()
    page = AttentionPage()
    for _ in range(2):
        page.add({"tokens": tokens, "second": 6, "maps": maps})
    page.write(str(place / "page.html"), f"/home/anna/{SWEEP}/pretrain")
    return (place / "page.html").read_text()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


@pytest.mark.parametrize("make", [dashboard, trend, report, attention, try_page])
def test_nothing_is_cut_broken_or_pale(
    chromium: Any, tmp_path: Path, make: Callable[[Path], str]
) -> None:
    page = chromium.new_page()
    page.set_content(make(tmp_path))
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert (width, scheme, page.evaluate(FAULTS)) == (width, scheme, [])
    page.close()


def test_the_state_of_a_run_with_a_long_name_is_on_the_screen(
    chromium: Any, tmp_path: Path
) -> None:
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    page.set_content(dashboard(tmp_path))
    table = page.locator(".panel").first
    assert table.evaluate("panel => panel.scrollWidth <= panel.clientWidth")
    page.close()


SMALLEST_TEXT = """svg => Math.min(...[...svg.querySelectorAll("text")].map(
    text => parseFloat(text.getAttribute("font-size")) * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width))"""


def test_the_graph_of_a_report_is_readable_on_a_phone(chromium: Any) -> None:
    nodes = reports.single()
    page = chromium.new_page(viewport={"width": 390, "height": 900})
    page.set_content(render(nodes, scores(nodes), []))
    panel = page.locator(".panel.picture")
    assert panel.locator("svg:visible").count() == 1
    assert panel.evaluate("panel => panel.scrollWidth <= panel.clientWidth")
    assert panel.locator("svg:visible").evaluate(SMALLEST_TEXT) >= 9
    page.close()


IN_TWO_LINES = """() => [...document.querySelectorAll(".error, code")].flatMap(element => {
  const broken = [], texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  for (let text; (text = texts.nextNode());) for (const part of text.data.matchAll(/[\\w.]{2,20}/g)) {
    const range = document.createRange();
    range.setStart(text, part.index); range.setEnd(text, part.index + part[0].length);
    if (new Set([...range.getClientRects()].map(r => Math.round(r.top))).size > 1) broken.push(part[0]);
  }
  return broken;
})"""


def test_paths_in_errors_break_at_their_slashes(chromium: Any, tmp_path: Path) -> None:
    saved = "/data/anna_42/runs/sample/pretrain_38c8155a7c09/checkpoints/step_00004702 is saved"
    write_run(tmp_path, "sample", error=f"training was stopped after step 4702 of 8000; {saved}")
    crown(tmp_path, checkpoint=saved.split()[0])
    page = chromium.new_page()
    page.set_content(
        TestClient(application(tmp_path, 8090), base_url="http://127.0.0.1:8090").get("/").text
    )
    for width in range(360, 1000, 40):
        page.set_viewport_size({"width": width, "height": 900})
        assert (width, page.evaluate(IN_TWO_LINES)) == (width, [])
    page.close()


def test_a_card_of_a_run_in_any_script_is_one_click_away(chromium: Any, tmp_path: Path) -> None:
    name = NAMES[2]
    write_run(tmp_path, name)
    (tmp_path / name / "corpus-abc").mkdir()
    (tmp_path / name / "corpus-abc" / "card.html").write_text("<main>the card</main>")
    client = TestClient(application(tmp_path, 8090), base_url="http://127.0.0.1:8090")
    page = chromium.new_page()

    def answer(route: Any) -> None:
        found = client.get(route.request.url)
        route.fulfill(status=found.status_code, headers=dict(found.headers), body=found.text)

    page.route("**/*", answer)
    page.goto("http://127.0.0.1:8090/")
    page.get_by_role("link", name="card").click()
    assert "the card" in page.inner_text("main")
    page.get_by_role("link", name="Runs").click()
    assert page.inner_text("h1") == "Runs"
    page.close()


def test_a_long_name_takes_no_room_from_the_chart() -> None:
    def frames(run: str) -> list[str]:
        nights = [night(results=[result(1, 0.5, run), result(2, 0.6, run)])] * 2
        return [
            part.partition("</g>")[0]
            for part in render_trend(nights, [], "UTC").split('<g id="patch_2">')[1:]
        ]

    assert frames(SWEEP) == frames("a")
    assert len(frames("a")) == 2


def test_times_of_summer_and_winter_are_in_the_zone_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        offset = time.localtime().tm_gmtoff
        for month, seconds in (("01", 1767265200.0), ("07", 1782910800.0)):  # noon and 13:00 UTC
            write_run(tmp_path, f"run-{month}", started=seconds)
        crown(tmp_path, since=1767265200.0)
        client = TestClient(application(tmp_path, 8090), base_url="http://127.0.0.1:8090")
        page = client.get("/").text
        zone = time.strftime("%Z")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert f"started ({zone})" in page
    hours = offset // 3600
    for text in (f"2026-01-01 {11 + hours}:00", f"2026-07-01 {13 + hours}:00"):
        assert text in page
    assert f"<td>2026-01-01 {11 + hours}:00 {zone}</td>" in page
    assert Journal(tmp_path).champion()


def test_a_dashboard_that_no_longer_answers_says_so_and_keeps_what_it_said(
    chromium: Any, tmp_path: Path
) -> None:
    write_run(tmp_path, "lasting", prefect="11-22")
    client = TestClient(application(tmp_path, 8090), base_url="http://127.0.0.1:8090")
    page, statuses = chromium.new_page(), iter([200, 500, 200])
    page.set_default_timeout(20_000)

    def answer(route: Any) -> None:
        status, found = next(statuses, 200), client.get(route.request.url)
        text = found.text if status == 200 else "Internal Server Error"
        route.fulfill(status=status, headers=dict(found.headers), body=text)

    (tmp_path / "lasting" / "report-a").mkdir()
    (tmp_path / "lasting" / "report-a" / "report.html").write_text("<main></main>")
    page.route("**/*", answer)
    page.clock.install()
    page.goto("http://127.0.0.1:8090/")
    page.get_by_role("link", name="report").focus()
    notice = page.get_by_role("alert")
    assert not notice.is_visible()
    page.clock.run_for(16_000)
    notice.wait_for()
    assert "lasting" in page.inner_text("main")
    page.clock.run_for(16_000)
    notice.wait_for(state="hidden")
    assert "lasting" in page.inner_text("main")
    assert page.evaluate("document.activeElement.textContent") == "report"  # for keyboards
    page.close()


def test_a_dashboard_that_renews_itself_has_nothing_to_complain_about(
    chromium: Any, tmp_path: Path
) -> None:
    write_run(tmp_path, "lasting")
    client = TestClient(application(tmp_path, 8090), base_url="http://127.0.0.1:8090")
    page, said = chromium.new_page(), []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))

    def answer(route: Any) -> None:
        found = client.get(route.request.url)
        route.fulfill(status=found.status_code, headers=dict(found.headers), body=found.text)

    page.route("**/*", answer)
    page.clock.install()
    page.goto("http://127.0.0.1:8090/")
    write_run(tmp_path, "second")
    page.clock.run_for(16_000)
    page.get_by_text("second").wait_for(timeout=20_000)
    assert said == []
    page.close()


def test_a_browser_that_logs_in_is_sent_on_and_mlflows_assistant_waits_until_it_is_asked(
    chromium: Any, tmp_path: Path
) -> None:
    client = TestClient(application(tmp_path, 8090, login="a:b"), base_url="http://127.0.0.1:8090")
    page = chromium.new_page()

    def answer(route: Any) -> None:
        found = client.get(route.request.url, headers=route.request.headers)
        route.fulfill(status=found.status_code, headers=dict(found.headers), body=found.text)

    page.route("**/*", answer)
    page.goto("http://127.0.0.1:8090/cloze-login?next=%2Fhealth%23%2Fexperiments#YTpi")
    page.wait_for_url("**/health#/experiments")
    stored = page.evaluate("({...localStorage})")
    assert stored["mlflow.assistant.fab.autoOpenedOnFirstLoad_v1"] == "true"
    assert stored["prefect-password"] == "YTpi"
    page.close()
