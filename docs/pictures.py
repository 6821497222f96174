"""Renew a picture of `docs/images`: `python docs/pictures.py ADDRESS NAME [--width 1200] …`.

The address is a page of a running `cloze ui` or a file. Pictures have at most 128 colours, which
keeps them small. Look at each before it is committed.
"""

from __future__ import annotations

import argparse
import io
import shutil
from base64 import b64encode
from pathlib import Path
from urllib.parse import urlsplit

from PIL import Image
from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).parent / "images"


def main() -> None:
    """Open the page, click what is to be clicked, and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", help="page, such as http://127.0.0.1:8090/report/demo or a file")
    parser.add_argument("name", help="picture, such as report")
    parser.add_argument("--login", help="file `runs/.servers/login` of the server")
    parser.add_argument("--width", type=int, default=1200)
    parser.add_argument("--height", type=int, default=800)
    parser.add_argument("--click", action="append", default=[], help="text; repeatable")
    parser.add_argument("--wait", type=float, default=5, help="seconds after each page and click")
    given = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        page = browser.new_page(viewport={"width": given.width, "height": given.height})
        address = (
            given.address if "://" in given.address else Path(given.address).resolve().as_uri()
        )
        if given.login:
            key = b64encode(Path(given.login).read_bytes()).decode()
            page.goto(f"http://{urlsplit(address).netloc}/cloze-login#{key}")
            page.wait_for_timeout(2000)
        page.goto(address)
        for text in [None, *given.click]:
            if text:
                page.get_by_text(text, exact=True).first.click()
            page.wait_for_timeout(1000 * given.wait)
        picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        browser.close()
    small = picture.quantize(128, Image.Quantize.MAXCOVERAGE)
    small.save(IMAGES / f"{given.name}.png", optimize=True)


if __name__ == "__main__":
    main()
