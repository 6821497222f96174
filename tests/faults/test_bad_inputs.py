"""Bad inputs through the corpus stage: a sentence and its exit code, or the good part of it and a
count of what was left out.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from cloze.core.config import parse_config
from cloze.core.errors import ClozeError
from cloze.core.stages.execute import execute
from cloze.flows.cli import main
from cloze.pipeline.corpus.config import CorpusConfig
from cloze.pipeline.corpus.stage import STAGE
from tests.faults.bad_inputs import BAD, prepare
from tests.slices import few

# test_hostile_input.py and test_linear_time.py have the readers of these, too.
ELSEWHERE = {
    "deep HTML",
    "bomb in gz",
    "bomb in zst",
    "bomb in an EPUB",
    "infoboxes that are never closed",
    "code that is never closed",
    "a line of 100 MB",
    "deep wikitext",
}


NAMES = [name for name in BAD if os.geteuid() or "may read" not in name]


@pytest.mark.parametrize("name", few(NAMES, *(name for name in NAMES if name not in ELSEWHERE)))
def test_a_bad_input_is_told_in_a_sentence(name: str, tmp_path: Path) -> None:
    bad = BAD[name]
    source, settings = prepare(name, tmp_path)
    kind, path = source.split("=", 1)
    fields = settings.pop("fields", {})
    values = {"sources": [{"kind": kind, "path": path, "fields": fields}], **settings}
    if bad.code:
        with pytest.raises(ClozeError, match=f"(?s){bad.words}") as error:
            execute(STAGE, parse_config(CorpusConfig, values, "corpus"), {}, str(tmp_path / "out"))
        assert error.value.exit_code == bad.code
        assert "\n" not in str(error.value)
        return
    result = execute(STAGE, parse_config(CorpusConfig, values, "corpus"), {}, str(tmp_path / "out"))
    assert result.manifest.rows >= 1
    told = json.dumps(
        {"counters": result.manifest.counters, "summary": result.manifest.summary},
        ensure_ascii=False,
    )
    assert bool(bad.words) == ("quarantined/" in told or "duplicate_id" in told), told
    assert re.search(bad.words, told), told


@pytest.mark.usefixtures("warm")
def test_the_command_line_takes_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Blanks, line breaks and a dash in names; what is left out is said on the terminal."""
    source, _ = prepare("names with blanks, line breaks and a dash", tmp_path)
    (tmp_path / "in" / "broken link.txt").symlink_to("nowhere")
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.chdir(tmp_path)
    relative = os.path.relpath(source[5:], tmp_path)
    code = main(["corpus", "--source", f"text={relative}", "--out=-o u\nt"])
    said = "".join(capfd.readouterr())
    assert code == 0, said
    assert (
        "1 could not be read, such as text/broken link.txt: it is a link that leads to no file"
        in said
    )
    monkeypatch.chdir(tmp_path / "in")
    assert main(["corpus", "--source", "text=-x.txt", "--out", "other"]) == 3
    assert "none is left" in capfd.readouterr().err
