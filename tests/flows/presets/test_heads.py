"""The examples in the heads of presets: each is a graph as it stands there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from cloze.core.errors import UsageError
from cloze.flows.graph import config as configs
from cloze.flows.graph import overrides


def examples() -> list[tuple[str, str]]:
    """The indented lines of each head that are a `cloze run` or further options of the one above."""
    found = []
    for name, path in configs.preset_paths().items():
        head = re.match(r"(#.*\n)*", path.read_text())
        assert head is not None
        command = ""
        for block in re.sub(r"\\\n#\s+", " ", head[0]).splitlines():
            text = block.removeprefix("#").strip()
            if re.match(r"#     (cloze run |--set )", block):
                is_new = text.startswith("cloze run")
                command = text if is_new else f"{command} {text}"
                found.append((name, command.replace("…", "").strip()))
    return found


EXAMPLES = examples()


def test_the_heads_have_examples() -> None:
    assert len(EXAMPLES) > 50
    assert {name for name, _ in EXAMPLES} >= {"albert-table6", "glue", "bert-base", "transfer"}


@pytest.mark.parametrize(("name", "command"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_an_example_in_a_head_is_a_graph(
    name: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = r"(checkpoint|import_path)=([A-Z]+)"  # a word that stands for the reader's path
    words = shlex.split(re.sub(own, r"\1=./\2", command))
    assert words[:3] == ["cloze", "run", name]
    values = {}
    for option, value in zip(words[3::2], words[4::2], strict=True):
        assert option == "--set"
        key, _, text = value.partition("=")
        values[key] = yaml.safe_load(text)
    for place in re.findall(r"runs/[\w@/-]+|\b[A-Z0-9]+B?(?:/checkpoint)?\b", command):
        Path(place).mkdir(parents=True, exist_ok=True)  # the reader's own
    try:
        assert configs.load(name, overrides.nest(values)).nodes
    except UsageError as error:
        if "nothing of run" not in str(error):  # its tasks' files are in no empty directory
            raise
