"""Links between the pages of the repository, as a forge follows them. The site has its own check."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)


def anchors(text: str) -> set[str]:
    """Return the names that a forge gives to headings: it keeps each hyphen, the site joins them."""
    found, seen = set(), Counter[str]()
    for heading in re.findall(r"^#+ (.*)$", prose(text), re.M):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", plain.strip()).replace(" ", "-")
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


@pytest.mark.parametrize(
    ("heading", "name"),
    [
        ("# A run of *several* nodes", "a-run-of-several-nodes"),
        ("## GPU, `python -m x.y --n 9`", "gpu-python--m-xy---n-9"),
        ("### `cloze run`", "cloze-run"),
        ("# See [this](that.md#there)", "see-this"),
    ],
)
def test_names_of_headings(heading: str, name: str) -> None:
    assert anchors(heading) == {name}
    assert anchors(f"{heading}\n```\n# no heading\n```\n{heading}") == {name, f"{name}-1"}


def test_each_link_leads_to_a_file_and_to_a_heading() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    pages = [Path(REPOSITORY, name) for name in listed.stdout.split()]
    names = {page.resolve(): anchors(page.read_text()) for page in pages}
    lost, count = [], 0
    for page in pages:
        for link in LINK.findall(re.sub("`[^`\n]*`", "", prose(page.read_text()))):
            path, _, anchor = link.partition("#")
            if re.match("[a-z]+:", path):
                continue
            target = (page.parent / path if path else page).resolve()
            count += 1
            if not target.exists() or (anchor and anchor not in names.get(target, {anchor})):
                lost.append(f"{page.relative_to(REPOSITORY)}: {link}")
    assert lost == []
    assert count > 200
