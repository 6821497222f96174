"""The built documentation site, as a browser lays it out: nothing is missing, broken or pale, and
nothing is fetched from elsewhere.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

playwright_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = shutil.which("chromium")
ROOT = Path(__file__).parents[1]
FAULTS = (ROOT / "tests" / "flows" / "ui" / "page_faults.js").read_text()
CUT_OFF = """() => [
  ...[...document.images].filter(each => !each.naturalWidth || !each.alt).map(each => `no picture or text: ${each.src}`),
  ...[...document.querySelectorAll("article pre")].filter(each => getComputedStyle(each.firstElementChild ?? each).overflowX === "visible" && each.scrollWidth > each.clientWidth).map(each => `cut: ${each.innerText.slice(0, 40)}`),
]"""
# Browsers break code after an ellipsis, a quote or a bracket, and so may we.
BREAKS = re.compile(r'broken: .*[…"<>{}\[\]]')


@pytest.mark.timeout(1200)
@pytest.mark.soak  # builds the whole site, and lays out each page four times
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_each_page_of_the_site_is_whole(tmp_path: Path) -> None:
    site = tmp_path / "site"
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--quiet",
        "--strict",
        "--site-dir",
        str(site),
    ]
    subprocess.run(command, cwd=ROOT, check=True)
    found: dict[str, Any] = {}
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        outside: list[str] = []
        page.on("request", lambda request: outside.append(request.url))
        pages = sorted(path for path in site.rglob("*.html") if path.name != "404.html")
        for path in pages:
            page.goto(path.as_uri())
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                for width in (390, 1280):
                    page.set_viewport_size({"width": width, "height": 900})
                    faults = page.evaluate(FAULTS) + page.evaluate(CUT_OFF)
                    said = [fault for fault in faults if not BREAKS.match(fault)]
                    if said:
                        found[f"{path.relative_to(site)} {width} {scheme}"] = said
        browser.close()
    assert len(pages) > 50
    assert found == {}
    assert [url for url in outside if not url.startswith(("file:", "data:", "blob:"))] == []
