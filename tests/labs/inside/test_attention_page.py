"""The attention page in a browser: layers, heads, tokens under the pointer, thumbnails."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from cloze.labs.inside.attention_page import AttentionPage

playwright_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
TOKENS = ["[CLS]", "the", "cat", "[SEP]", "<b>", "[SEP]"]


def test_clicks_and_pointers_choose_what_is_shown(tmp_path: Path) -> None:
    maps = np.random.default_rng(0).dirichlet(np.ones(6), (2, 3, 6))
    maps[1, 2, 2] = [0, 0.75, 0.25, 0, 0, 0]
    layers = [maps[0].tolist(), maps[1].tolist()]
    page = AttentionPage()
    page.add({"tokens": TOKENS, "second": 4, "maps": layers})
    page.add({"tokens": TOKENS[:3], "second": 3, "maps": [[[[1.0, 0, 0]] * 3] * 3] * 2})
    path = tmp_path / "page.html"
    assert page.write(str(path), "W/pretrain") == 2
    with playwright_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        shown = chromium.new_page(viewport={"width": 1000, "height": 800})
        problems: list[str] = []
        shown.on("pageerror", lambda error: problems.append(str(error)))
        shown.on("request", lambda request: problems.append(request.url))
        shown.goto(path.as_uri())
        assert shown.locator(".token.left").all_inner_texts() == TOKENS
        assert shown.locator(".head[aria-pressed=true]").count() == 3
        shown.click("#tab-model")
        assert shown.locator(".thumb").count() == 6
        shown.click("[aria-label='Open layer 2, head 3']")
        assert shown.locator(".head[aria-pressed=true]").all_inner_texts() == ["3"]
        assert shown.input_value("#layer") == "1"
        shown.hover(".token.left >> nth=2")
        assert shown.inner_text("aside h2") == "cat attends to"
        lines = shown.locator("aside li").all_inner_texts()
        assert [line.split()[:2] for line in lines[:2]] == [["0.75", "the"], ["0.25", "cat"]]
        shown.select_option("#filter", "01")  # from the first text to the second
        assert shown.locator("aside li >> nth=0").inner_text().startswith("0.00")
        shown.select_option("#text", "1")
        assert shown.locator(".token.right").count() == 3
        assert not shown.is_visible("#pairs")
        assert [url for url in problems if url != path.as_uri()] == []
        chromium.close()
