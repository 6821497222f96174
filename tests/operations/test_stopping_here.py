"""Ways to stop a run without Prefect: in a terminal, by signals, with its machine. See `stopping`."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.operations.stopping import PATIENCE, Home, Row, Terminal, until
from tests.slices import few

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def tracking(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database of MLflow's."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture
def home(tmp_path: Path, tracking: str) -> Home:
    return Home(tmp_path / "home", tracking)


@pytest.fixture
def terminal(home: Home) -> Iterator[Terminal]:
    """A terminal in which a training has begun."""
    with home.terminal() as found:
        yield found


def close(terminal: Terminal) -> None:
    terminal.close()


def interrupt(terminal: Terminal) -> None:
    terminal.type("\x03")


def twice(act: Callable[[Terminal], None]) -> Callable[[Terminal], None]:
    """Again while the ranks save."""

    def acts(terminal: Terminal) -> None:
        act(terminal)
        time.sleep(0.7)
        act(terminal)

    return acts


def send(number: signal.Signals) -> Callable[[Terminal], None]:
    return lambda terminal: terminal.process.send_signal(number)


WAYS: dict[str, tuple[Callable[[Terminal], None], bool]] = {  # what is done, whether it saves
    "Ctrl-C": (interrupt, True),
    "Ctrl-C twice": (twice(interrupt), False),
    "SIGTERM": (send(signal.SIGTERM), True),
    "SIGTERM twice (timeout, systemd)": (twice(send(signal.SIGTERM)), True),
    "terminal closed (SIGHUP)": (close, True),
    "SIGHUP, then SIGTERM": (twice(send(signal.SIGHUP)), True),
    "SIGKILL": (send(signal.SIGKILL), False),
    "Ctrl-\\ (SIGQUIT)": (lambda terminal: terminal.type("\x1c"), False),
}


@pytest.mark.parametrize("way", few(WAYS, "Ctrl-C twice", "terminal closed (SIGHUP)"))
def test_a_run_in_a_terminal(home: Home, terminal: Terminal, way: str) -> None:
    act, saves = WAYS[way]
    seconds = terminal.stop(lambda: act(terminal))
    record, status, step, mlflow = home.record, home.status(), home.step, home.mlflow()
    continues = home.resumed()
    Row(way, seconds, "–", status, mlflow, f"step {step}", f"resume: from {continues}").keep()
    assert continues == step >= 10
    assert status == ("cancelled, stopped" if saves else "crashed, crashed"), record
    assert (step % 10 > 0) or not saves
    if saves:
        assert record["error"] == f"training was stopped after step {step}, checkpoint saved"
        assert terminal.process.returncode == 4
    elif way == "Ctrl-C twice":
        assert "ended at once; run the same command again to continue" in terminal.said
    assert mlflow == "KILLED"


@pytest.mark.soak
@pytest.mark.parametrize("way", ["nohup, then terminal closed", "disowned, then terminal closed"])
def test_a_run_that_does_not_hear_of_its_terminal(home: Home, way: str) -> None:
    """It goes on to its end, also if what it prints is an error."""
    log = home.directory / "nohup.out" if way.startswith("nohup") else None
    with home.terminal(log, hears=False) as terminal:
        terminal.close()
        before = home.step
        until(lambda: home.step > before + 10 or terminal.process.poll() is not None)
        home.hold.unlink()
        code = terminal.process.wait(PATIENCE)
    Row(way, None, "–", home.status(), home.mlflow(), "–", "goes on by itself").keep()
    assert home.status() == "finished, finished", home.record["error"]
    assert code == 0 or log is None  # Python itself fails to flush to the closed terminal


def test_each_row_of_the_table_names_its_test() -> None:
    """In docs/how-to/incidents.md."""
    page = (REPOSITORY / "docs" / "how-to" / "incidents.md").read_text()
    rows = re.findall(r"^\|.*\| `(\S+)::(\w+)` \|$", page.partition("## Ways to stop")[2], re.M)
    assert len(rows) > 25
    texts = {path.name: path.read_text() for path in (REPOSITORY / "tests").rglob("test_*.py")}
    assert [row for row in rows if f"def {row[1]}(" not in texts[row[0]]] == []
