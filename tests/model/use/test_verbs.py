"""Verbs read what they are asked as a stream, answer as they go, and say which line is wrong."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import cloze
from cloze.core.errors import DataError, UsageError
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext, Reporter
from cloze.flows.cli import main
from cloze.model.use.configs import VerbConfig
from cloze.model.use.request import LONGEST, Request, read_requests
from cloze.model.use.verb import CHARACTERS, GROUP, Verb, serve
from tests import warm
from tests.tiny_models import write_checkpoint

pytestmark = pytest.mark.usefixtures("warm")


class Shouting(Verb[str]):
    """Gives texts back in capitals; remembers how many it got at once."""

    def __init__(self) -> None:
        self.groups: list[int] = []

    def read(self, request: Request) -> str:
        return request.text("text") + (request.optional("tail") or "")

    def answer(self, group: Sequence[str]) -> Sequence[dict[str, Any]]:
        self.groups.append(len(group))
        return [{"loud": text.upper()} for text in group]


class Listener(Reporter):
    """Keeps what was answered."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self.done: list[tuple[float, float | None, int]] = []

    def progress(self, done: float, total: float | None, unit: str, figures: Any) -> None:
        assert unit == "bytes"
        self.done.append((done, total, figures["answered"]))

    def predictions(self, values: Any) -> None:
        self.found += values


def answered(listener: Listener, verb: Verb[Any] | None = None, **asked: Any) -> dict[str, Any]:
    build = BuildContext(path="", inputs={}, execution=Execution(), fingerprint="", report=listener)
    return serve(verb or Shouting(), VerbConfig(**asked), "text", build).summary


def told(path: Path, **asked: Any) -> list[dict[str, Any]]:
    listener = Listener()
    assert answered(listener, file=str(path), **asked) == {"answered": len(listener.found)}
    return listener.found


def test_a_line_is_a_text_whatever_its_end_and_blank_ones_only_count(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\n\r\n \ntwo\twords  \nlast")
    assert told(path) == [
        {"index": 0, "loud": "ONE"},
        {"index": 3, "loud": "TWO\tWORDS  "},
        {"index": 4, "loud": "LAST"},
    ]


def test_a_jsonl_line_is_the_fields_and_its_id_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "a", "id": 7, "more": [1]}\n{"text": "b", "tail": "!"}\n')
    found = told(path, jsonl=True, common={"tail": "?"})
    assert found == [{"index": 0, "id": 7, "loud": "A?"}, {"index": 1, "loud": "B!"}]


@pytest.mark.parametrize(
    ("line", "jsonl", "fault"),
    [
        (b"a\xff", False, "is no UTF-8 (byte 0xff)"),
        (b"a\0b", False, "has a NUL character in 'text'"),
        (b'{"txt": "a"}', True, "has no 'text' (it has txt)"),
        (b'{"text": 3}', True, "has a 'text' that is no text (3)"),
        (rb'{"text": "\ud800"}', True, "\\ud800 is half a character"),
        (b'{"text": "a"', True, "is no JSON"),
        (b'["a"]', True, "contains no JSON object"),
        (b"a" * (LONGEST + (1 << 17)), False, "is longer than"),
    ],
)
def test_a_bad_line_is_told_with_its_number_and_what_came_before_it_is_answered(
    tmp_path: Path, line: bytes, jsonl: bool, fault: str
) -> None:
    path, listener = tmp_path / "texts", Listener()
    path.write_bytes(b'{"text": "good"}\n\n' + line + b"\nnever read")
    with pytest.raises(DataError) as caught:
        answered(listener, file=str(path), called="my texts", jsonl=jsonl)
    assert str(caught.value).startswith("my texts, line 3 ")
    assert fault in str(caught.value)
    assert [found["index"] for found in listener.found] == [0]


@pytest.mark.parametrize("content", [b"", b"\n \r\n", None])
def test_nothing_to_answer_is_told(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "texts"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(
        DataError, match="has no lines" if content is not None else "does not exist"
    ):
        told(path)
    with pytest.raises(DataError, match="is a directory"):
        told(tmp_path)


def test_what_is_wrong_with_a_typed_text_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match=r"^the text 'None' has no 'text' \(it has question\)"):
        answered(Listener(), requests=[{"question": "?"}])


def test_a_long_file_is_neither_held_nor_one_batch(tmp_path: Path) -> None:
    path, verb, listener = tmp_path / "texts", Shouting(), Listener()
    path.write_bytes(b"".join(b"%06d\n" % number for number in range(100_000)))
    lines = read_requests(str(path), VerbConfig(file=str(path)), "text")
    first = next(line for line in lines if line is not None)
    assert (first.index, first.fields) == (0, {"text": "000000"})
    assert answered(listener, verb, file=str(path)) == {"answered": 100_000}
    assert verb.groups == [GROUP] * (100_000 // GROUP) + [100_000 % GROUP]
    assert [found["loud"] for found in listener.found] == [
        f"{number:06}" for number in range(100_000)
    ]


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> str:
    base = tmp_path_factory.mktemp("verbs")
    return write_checkpoint(base / "checkpoint", base / "scratch")


@pytest.fixture
def running(pretrained: str) -> Iterator[subprocess.Popen[str]]:
    """`cloze fill-mask` with its standard input and output in our hands."""
    command = [warm.python(), "-c", warm.ENTRY, "fill-mask", pretrained, "--top-k", "1"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
        bufsize=1,
        # a shell's background jobs ignore it, and so do their children
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        yield process
        process.kill()


def test_a_pipe_is_answered_line_by_line_until_one_is_wrong(running: subprocess.Popen[str]) -> None:
    assert running.stdin is not None
    assert running.stdout is not None
    assert running.stderr is not None
    for number in range(2):
        running.stdin.write("the [MASK] sat\n")
        answer = json.loads(running.stdout.readline())  # before the next line is written
        assert (answer["index"], len(answer["predictions"])) == (number, 1)
    running.stdin.write("the [MASK] ran\nno mask\nthe [MASK]\n")
    running.stdin.close()
    assert [json.loads(line)["index"] for line in running.stdout] == [2]
    assert running.wait(60) == 3
    assert running.stderr.read().startswith(
        "cloze: standard input, line 4: the text 'no mask' has no [MASK]"
    )


def test_an_interrupted_verb_ends_quietly(running: subprocess.Popen[str]) -> None:
    assert running.stdin is not None
    assert running.stdout is not None
    assert running.stderr is not None
    running.stdin.write("the [MASK] sat\n")
    assert running.stdout.readline()
    running.send_signal(signal.SIGINT)
    assert running.wait() == 1  # however long others keep the cores: pytest has a timeout
    assert (running.stdout.read(), running.stderr.read()) == ("", "")


def test_json_of_what_was_typed_is_one_object(
    pretrained: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["a [MASK] sat on the [MASK]", "--text", "the [MASK]", "--top-k", "2", "--json"]
    assert main(["fill-mask", pretrained, *arguments]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert [len(mask) for mask in json.loads(line)["predictions"]] == [2, 2, 2]


@pytest.mark.parametrize("command", ["score", "embed"])
def test_a_terminal_shows_texts_as_they_are(
    pretrained: str,
    command: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    text = "if x[/i] then [bold] :smile:"
    assert main([command, pretrained, text]) == 0
    assert capsys.readouterr().out.endswith(f"  {text}\n")


def test_answers_go_to_a_file(
    pretrained: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # the worker stands elsewhere
    Path("in.jsonl").write_text('{"id": "x", "text": "the [MASK]"}\n')
    assert (
        main(["fill-mask", pretrained, "--file", "in.jsonl", "--out", "out.jsonl", "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out) == {"out": "out.jsonl", "answered": 1}
    (answer,) = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert (answer["index"], answer["id"]) == (0, "x")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["a [MASK]", "--file", "texts"], "excludes texts"),
        (["a [MASK]", "-"], "cannot be mixed with texts"),
        (["--file", "texts", "--out", "./texts"], "is the input file"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("texts").write_text("a [MASK]\n")
    assert main(["fill-mask", "/", *arguments]) == 2
    assert sentence in capsys.readouterr().err
    assert os.path.getsize("texts") == 9


class Overlapping(Shouting):
    """Answers a group only once the next one is encoded."""

    def __init__(self) -> None:
        super().__init__()
        self.encoded: list[threading.Event] = [threading.Event() for _ in range(3)]

    def encode(self, group: Sequence[str]) -> Sequence[str]:
        next(event for event in self.encoded if not event.is_set()).set()
        return group

    def answer(self, encoded: Sequence[str]) -> Sequence[dict[str, Any]]:
        following = self.encoded[min(len(self.groups) + 1, 2)]
        assert following.wait(60)
        return super().answer(encoded)


def test_the_next_group_is_encoded_while_the_model_computes(tmp_path: Path) -> None:
    path, listener = tmp_path / "texts", Listener()
    path.write_bytes(b"text\n" * (2 * GROUP + 1))
    assert answered(listener, Overlapping(), file=str(path)) == {"answered": 2 * GROUP + 1}
    size = path.stat().st_size
    assert listener.done == [
        (5 * GROUP, size, GROUP),
        (10 * GROUP, size, 2 * GROUP),
        (size, size, 2 * GROUP + 1),
    ]


def test_a_group_of_long_texts_is_smaller(tmp_path: Path) -> None:
    path, verb = tmp_path / "texts", Shouting()
    path.write_bytes((b"a" * (CHARACTERS // 4) + b"\n") * 10)
    answered(Listener(), verb, file=str(path))
    assert verb.groups == [5, 5]


def test_progress_is_shown_on_a_terminal_alone(pretrained: str, tmp_path: Path) -> None:
    """A pseudo-terminal as standard error shows the bar; standard output has the answers alone."""
    file = tmp_path / "in"
    file.write_text("the [MASK] sat\n" * 3)
    command = [warm.python(), "-c", warm.ENTRY, "fill-mask", pretrained, "--file", str(file)]
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while chunk := os.read(ours, 1 << 16):
                shown += chunk
        assert process.stdout is not None
        assert [json.loads(line)["index"] for line in process.stdout] == [0, 1, 2]
    os.close(ours)
    assert b"fill-mask" in shown
    assert b"bytes" in shown


@pytest.mark.skipif(torch.cuda.is_available(), reason="the machine has a GPU")
def test_device_and_precision_are_options(
    pretrained: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fill-mask", pretrained, "the [MASK]", "--device", "cuda"]) == 2
    assert "device (cuda) is not available" in capsys.readouterr().err
    best = []
    for precision in ("fp32", "bf16"):
        options = ["--device", "auto", "--precision", precision, "--json"]
        assert main(["fill-mask", pretrained, "the [MASK] sat", *options]) == 0
        best.append(json.loads(capsys.readouterr().out)["predictions"][0][0]["score"])
    assert best[1] == pytest.approx(best[0], rel=0.05)
    assert best[1] != best[0]


def test_python_answers_any_number_of_requests(pretrained: str) -> None:
    model = cloze.load(pretrained, device="auto", precision="fp32")
    texts = [f"the [MASK] sat on {word}" for word in ("a mat", "the cat in the park", "paris")]
    answers = list(model.batch("fill-mask", iter(texts), top_k=2))
    for text, answer in zip(texts, answers, strict=True):
        tokens = [[best["token"] for best in mask] for mask in answer["predictions"]]
        alone = model.fill_mask(text, 2)
        assert tokens == [[best["token"] for best in mask] for mask in alone]
    (row,) = model.batch("score", [{"text": "the cat"}])
    assert row["score"] == pytest.approx(model.score("the cat")["score"], rel=1e-5)
    with pytest.raises(UsageError, match=r"verb \('say'\) is unknown"):
        next(model.batch("say", ["the"]))
    with pytest.raises(UsageError, match="request 1 has no 'text'"):
        list(model.batch("score", ["the cat", {"txt": "a"}]))
