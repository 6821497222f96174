"""What accounts share: a umask of its own for the thread that writes there, and no file through a
link that another account may have placed.
"""

from __future__ import annotations

import ast
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloze.core import accounts, storage
from cloze.core.artifacts import fence
from cloze.core.artifacts.lock import locked
from cloze.core.errors import DataError
from cloze.flows.launch.event_files import EventWriter
from cloze.flows.nightly.journal import Journal
from cloze.flows.run import retention, source
from cloze.flows.tracking import spool, spool_state
from tests.conftest import REPOSITORY
from tests.tools.source_file import PRODUCT

# files that open for writing what no other account can have placed, and why
OTHERWISE = {
    "core/arrow.py": "a directory of this account alone",
    "core/artifacts/checkpoints.py": "a lock; nothing is written",
    "core/object_store.py": "objects of a store",
    "core/processes.py": "a file in memory",
    "flows/cli.py": "the null device and the streams",
    "flows/commands/base/inference_command.py": "--out, which may be a link of the user's",
    "flows/machine/slots.py": "O_EXCL",
    "labs/downloads/download.py": "a directory that the user names",
    "labs/downloads/fetch.py": "a directory that the user names",
    "labs/serving/http/worker_process.py": "a directory of this account alone",
}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a umask is the process's")
def test_a_thread_that_shares_changes_no_other_threads_files(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o2770)
    go, made = threading.Event(), threading.Event()

    def write(name: str) -> None:
        (tmp_path / name).touch()

    def earlier() -> None:
        os.umask(0o077)
        go.wait()
        write("of a thread from before")
        made.set()

    def share() -> None:
        thread = threading.Thread(target=earlier)
        thread.start()
        accounts.share(tmp_path / "shared")
        go.set()
        made.wait()
        write("own")
        later = threading.Thread(target=write, args=["of a later thread"])
        later.start()
        later.join()
        subprocess.run(["touch", tmp_path / "of a process"], check=True)

    before = os.umask(0o077)
    try:
        thread = threading.Thread(target=share)
        thread.start()
        thread.join()
        write("of the main thread")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("o*")}
    groups = ("own", "of a later thread", "of a process")
    assert modes == {
        "of a thread from before": 0o600, "of the main thread": 0o600, **dict.fromkeys(groups, 0o660),
    }  # fmt: skip


def _write_source(place: Path) -> None:
    source._write(place / "a.py", b"edited")


WRITERS = {
    "a lock": ("_lock", lambda place: locked(str(place)).__enter__()),
    "the fence": (fence.FENCE, lambda place: fence.start_launch(str(place))),
    "the journal": ("nights.jsonl", lambda place: Journal(place.parent).append({"kind": "night"})),
    "events": ("events.jsonl", lambda place: EventWriter(str(place / "events"))),
    "a copy of the source": (f".a.py.{os.getpid()}", _write_source),
    "a lock of spools": ("x", lambda place: spool_state.exclusive(place, "x").__enter__()),
    "a private file": ("x", lambda place: accounts.open_private(str(place / "x"), os.O_CREAT)),
}


@pytest.fixture
def secret(tmp_path: Path) -> Iterator[Path]:
    """A file of this account that a link in a shared directory leads to."""
    file = tmp_path / "secret"
    file.write_text("mine")
    yield file
    assert file.read_text() == "mine"


@pytest.mark.parametrize("writer", WRITERS)
def test_nothing_is_written_through_a_link_of_another_account(
    writer: str, secret: Path, tmp_path: Path
) -> None:
    place = tmp_path / ".night"  # as the journal's
    place.mkdir()
    name, write = WRITERS[writer]
    (place / name).parent.mkdir(exist_ok=True)
    (place / name).symlink_to(secret)
    with pytest.raises(OSError, match=f"symbolic links.*{name}"):
        write(place)


def test_a_linked_spool_is_nobodys(secret: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").symlink_to(secret)
    assert spool.claim(tmp_path / "a.jsonl", shared=False) is None


def test_a_linked_lock_of_starts_holds_up_no_run(secret: Path, tmp_path: Path) -> None:
    (tmp_path / retention.STARTS).symlink_to(secret)
    with retention.starts(tmp_path):
        pass


def _opened(tree: ast.AST) -> Iterator[str]:
    """The calls of a file that may open a file for writing, and name no opener."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        text, function = ast.unparse(call), ast.unparse(call.func)
        words = {word.value for word in call.args if isinstance(word, ast.Constant)}
        words |= {key.value.value for key in call.keywords if isinstance(key.value, ast.Constant)}
        is_writing = any(isinstance(word, str) and {*word} & {*"wax+"} and {*word} <= {*"rwaxbt+"}
                         for word in words)  # fmt: skip
        if function == "os.open":
            is_writing = "O_CREAT" in text
        elif function.endswith((".write_text", ".write_bytes")):
            is_writing = function not in ("storage.write_bytes", "formatter.write_text")
        elif not function.endswith("open") or function == "os.fdopen":
            continue
        if is_writing and "opener=" not in text and function != "open_unlinked":
            yield text


def test_each_writer_says_that_it_follows_no_link() -> None:
    found = {
        str(path.relative_to(REPOSITORY)): calls
        for folder in PRODUCT
        for path in sorted((REPOSITORY / folder).rglob("*.py"))
        if (calls := list(_opened(ast.parse(path.read_text()))))
    }
    found.pop("core/accounts.py", None)
    assert {name: calls for name, calls in found.items() if name not in OTHERWISE} == {}


def test_a_damaged_text_is_one_sentence_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(DataError, match=r"a\.json is not UTF-8 at byte 7; restore it"):
        storage.read_text(str(tmp_path / "a.json"))
