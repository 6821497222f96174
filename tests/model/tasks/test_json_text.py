"""JSON that is none, or that nothing can be done with, is reported with its place in every form that
tasks come in.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloze.core.errors import DataError
from cloze.model.tasks.formats.lines import load_json
from cloze.model.tasks.table import load_task

HALF = '"\\ud83d"'


@pytest.mark.parametrize(
    "text", ['{"a": [1, null, "\\ud83d\\ude00 \\\\ud83d"]}', '"\\u00e9"', "7", '"\\\\ud83d"']
)
def test_json_is_what_it_says(text: str) -> None:
    assert load_json(text) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "said", "place"),
    [
        ("{", "Expecting", 1),
        ("[" * 100_000, "nested too deeply", 0),
        ("1" * 5000, "5000 digits", 0),
        (f"[1, {HALF}]", "half", 5),
    ],
)
def test_what_cannot_be_used_is_one_kind_of_error(text: str, said: str, place: int) -> None:
    with pytest.raises(json.JSONDecodeError, match=said) as fault:
        load_json(text)
    assert fault.value.pos == place


def test_every_form_of_task_tells_the_file(tmp_path: Path) -> None:
    (tmp_path / "RACE" / "dev").mkdir(parents=True)
    (tmp_path / "RACE" / "dev" / "1.txt").write_text(f'{{"article": {HALF}}}')
    (tmp_path / "squad").mkdir()
    (tmp_path / "squad" / "dev-v1.1.json").write_text(f'{{"data":\n{"[" * 100_000}')
    (tmp_path / "dev.jsonl").write_text(
        f'{{"text": "a", "label": "0"}}\n{{"text": {HALF}, "label": "0"}}\n'
    )
    for task, said in (
        ("race", r"1\.txt, line 1, column 14: not valid JSON"),
        ("squad", r"dev-v1\.1\.json"),
        ("classification", r"dev\.jsonl, line 2, column 11"),
    ):
        with pytest.raises(DataError, match=said):
            load_task(task).read(str(tmp_path), "dev", None)
