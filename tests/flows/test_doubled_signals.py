"""A signal that arrives twice at once is one wish; only a later Ctrl-C gives up what is saved."""

from __future__ import annotations

import itertools
import os
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cloze.core import errors
from cloze.flows import cli
from cloze.flows.ui.services import services
from cloze.flows.ui.supervisor import Supervisor
from cloze.model.train.distributed import StopRequest

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PAIRS = [pytest.param(pair, id="-".join(each.name for each in pair))
         for pair in itertools.product(SIGNALS, SIGNALS)]  # fmt: skip


@pytest.fixture
def handlers() -> Iterator[None]:
    """Signals are handled as before, afterwards."""
    kept = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        signal.signal(number, signal.default_int_handler)
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let a second pass."""
    return lambda: monkeypatch.setattr(errors, "ECHO_SECONDS", -1.0)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("pair", PAIRS)
def test_the_command_line(
    pair: tuple[signal.Signals, ...], later: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrapper (`uv run`, a shell, npm) passes on what the terminal has sent to all already."""
    ends: list[int] = []
    monkeypatch.setattr(os, "_exit", ends.append)
    for number in SIGNALS:
        signal.signal(number, cli._interrupt)
    monkeypatch.setattr(os, "isatty", lambda number: True)  # no stream is replaced at SIGHUP
    monkeypatch.setattr(stat, "S_ISCHR", lambda mode: False)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(pair[0])
    signal.raise_signal(pair[1])
    assert ends == []
    later()
    signal.raise_signal(signal.SIGINT)
    assert ends == [1]


@pytest.mark.usefixtures("handlers")
def test_a_training(later: Callable[[], None]) -> None:
    with StopRequest.installed() as request:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert request.requested
        later()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("pair", PAIRS)
def test_the_servers(
    pair: tuple[signal.Signals, ...], later: Callable[[], None], tmp_path: Path
) -> None:
    """systemd may send SIGHUP right after SIGTERM; a closed terminal and its shell send two."""
    supervisor = Supervisor(tmp_path, services(1, 2), 3, report=print, on_up=print)
    for number in pair:
        supervisor._stop(number, None)
    assert supervisor._stop_requested.is_set()
    assert not supervisor._hurry.is_set()
    later()
    for number in (signal.SIGTERM, signal.SIGHUP):
        supervisor._stop(number, None)
    assert not supervisor._hurry.is_set()
    supervisor._stop(signal.SIGINT, None)
    assert supervisor._hurry.is_set()


def test_an_echo_is_shorter_than_a_second_thought() -> None:
    assert 0.1 < errors.ECHO_SECONDS < 0.7
