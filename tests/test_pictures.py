"""The pictures of the documentation: each is shown, and one command renews it."""

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def shown() -> dict[str, str]:
    """Name of each picture of `docs/images` that a page shows: what it says without it."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    found = [
        re.findall(r"!\[([^\]]*)\]\([./]*(?:docs/)?images/([\w.-]+)\)", page.read_text())
        for page in pages
    ]
    return {name: text for each in found for text, name in each}


def test_each_picture_is_shown_and_says_what_it_is() -> None:
    pictures = shown()
    assert sorted(pictures) == sorted(path.name for path in (ROOT / "docs" / "images").iterdir())
    assert all(len(text) > 10 for text in pictures.values())


def test_one_command_renews_each_picture_of_a_page() -> None:
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "docs" / "pictures.py")
    assert spec
    assert spec.loader
    pictures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pictures)
    screens = {name.removesuffix(".png") for name in shown() if name.endswith(".png")}
    assert screens <= set(pictures.PICTURES) | set(pictures.FILES)
