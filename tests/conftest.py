"""Fixtures that all tests share: the sample data, the shared data where it is, and a quiet
environment.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from cloze.core import plugins
from cloze.flows.run import source
from tests import slices
from tests import warm as warming
from tests.object_store import s3_server as s3_server
from tests.object_store import store as store

REPOSITORY = Path(__file__).resolve().parent.parent
SHARED_DATA = REPOSITORY.parent / "shared" / "data"

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["CLOZE_SITE"] = os.devnull  # not the site of whoever runs the tests
# Three workers share two cores: threads of torch that spin while they wait take them from another.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

# The same examples at every run, and no deadline, so that a change is to blame for what fails and
# not a busy machine; HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture(autouse=True)
def _no_records_in_the_checkout(request: pytest.FixtureRequest) -> Iterator[None]:
    """A command typed in the checkout has its records with the test's own files."""
    folders = request.path.relative_to(REPOSITORY / "tests").parts
    # Its own patch: a test's `monkeypatch` ends before the `tmp_path` that it may have asked for first.
    with pytest.MonkeyPatch.context() as patch:
        if folders[0] in ("labs", "model", "pipeline") or folders[:2] == ("flows", "commands"):
            patch.setenv("CLOZE_RUNS_DIR", str(request.getfixturevalue("tmp_path") / "runs"))
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("cloze")
    group.addoption("--slice", metavar="K/N", help="of what `make test` leaves out, slice K of N")
    group.addoption("--shard", metavar="K/N", help="of what `make test` runs, part K of N")
    group.addoption(
        "--record-durations", action="store_true", help="write tests/durations.json at the end"
    )
    group.addoption("--write-table", action="store_true", help="write the table of tests/README.md")


def pytest_configure(config: pytest.Config) -> None:
    """Workers share one nursery; it imports the libraries while they collect."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        os.environ.update(warming.nursery().environment)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file's tests stay on one worker, for the sake of what they share."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return slices.group_of(nodeid)

    return Scheduling(config, log)


SOAK_SECONDS = 1500  # the end of what hangs: three minutes become ten on a machine with other work


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest groups first; with `--slice` or `--shard`, only what belongs to it."""
    durations = slices.read_durations()
    if config.getoption("--write-table"):
        slices.write_table(items)
    for option, is_left_out in (("--slice", True), ("--shard", False)):
        if wanted := config.getoption(option):
            number, count = map(int, wanted.split("/"))
            chosen = [item for item in items if slices.is_left_out(item) is is_left_out]
            places = slices.slices_of(chosen, count, durations)
            mine = {
                item for item in chosen if places[slices.file_of(item.nodeid)] == number % count
            }
            config.hook.pytest_deselected(items=[item for item in items if item not in mine])
            items[:] = [item for item in items if item in mine]
    slices.longest_first(items, durations)
    for item in filter(slices.is_left_out, items):
        limit = item.get_closest_marker("timeout")
        if limit is None or limit.args[0] < SOAK_SECONDS:
            item.add_marker(pytest.mark.timeout(SOAK_SECONDS), append=False)


def _clocks() -> dict[str, Any]:
    return {name: getattr(time, name) for name in ("time", "monotonic", "perf_counter", "sleep")}


CLOCKS = _clocks()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """A clock that a test leaves standing stops all that its worker runs after it."""
    yield
    left = [name for name, clock in _clocks().items() if clock is not CLOCKS[name]]
    vars(time).update(CLOCKS)
    assert not left, f"this test left another time.{', time.'.join(left)}"


_seconds: Counter[str] = Counter()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Setup, call and teardown count."""
    _seconds[report.nodeid] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    is_worker = hasattr(session.config, "workerinput")
    if session.config.getoption("--record-durations") and not is_worker:
        slices.write_durations(_seconds)


def pytest_collection() -> None:
    """Garbage is not looked for: of a million objects, nearly all are what is imported."""
    gc.disable()


def pytest_collection_finish() -> None:
    """From here on it is, seldom."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(10_000, 20, 50)


@pytest.fixture(scope="session")
def samples() -> Path:
    """The sample data that the repository brings."""
    return REPOSITORY / "samples"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data beside the checkout; tests that want it skip where it is absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip(
            f"{SHARED_DATA} is not here: this test reads real data that is no part of the "
            f"repository"
        )
    return SHARED_DATA


@pytest.fixture(scope="session", autouse=True)
def _own_places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hashes of files are remembered in a cache of the test session's own, and its runs wait for
    none of the user's and keep none waiting.
    """
    own = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(own / "cache"))
        patch.setenv("CLOZE_SLOTS_DIR", str(own / "slots"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _own_source() -> Iterator[None]:
    """Runs of this process copy no files of the program, and its imports stay those of the
    checkout; what it starts as a command of its own does as it does everywhere.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "fix", lambda _: plugins.own_version())
        yield


@pytest.fixture
def deepspeed_here() -> Iterator[None]:
    """DeepSpeed in this process; its process group, its variables and its `linear` of ZeRO 3, which
    rounds otherwise, end with the test.
    """
    from torch.nn import functional

    variables, linear = dict(os.environ), functional.linear
    yield
    from deepspeed import comm

    functional.linear = linear
    comm.destroy_process_group()
    comm.comm.cdb = None
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks and workers that this process starts are forks of a Python that has imported the
    libraries: see `tests.warm`.
    """
    monkeypatch.setattr(sys, "executable", warming.python())
