"""`/metrics` of the dashboard, from a real `cloze ui --dashboard-only`; alert rules and Grafana's dashboard."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cloze.core.artifacts import lock
from cloze.core.processes import free_ports
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext
from cloze.flows.graph.command import command_directory
from cloze.flows.launch.launch_state import LaunchState
from cloze.flows.nightly.journal import Journal
from cloze.flows.run import status_file
from cloze.flows.run.node_reporter import NodeReporter, StartedNodes
from cloze.flows.run.status_file import RUNNING
from cloze.flows.run.status_writer import RunStatusFile
from cloze.flows.tracking.spool import DIRECTORY, Spool
from cloze.flows.ui import prometheus
from tests.conftest import REPOSITORY
from tests.flows.ui.test_page import write_run
from tests.flows.ui.waiting import until

MONITORING = REPOSITORY / "infra" / "monitoring"
Samples = dict[tuple[str, tuple[str, ...]], float]


def samples(content: bytes) -> Samples:
    """Values by name of the series and values of its labels, in the order of the labels' names."""
    return {
        (sample.name, tuple(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(content.decode())
        for sample in family.samples
    }


def test_a_running_node_has_its_figures_and_an_ended_one_has_none(tmp_path: Path) -> None:
    figures = {"loss": 2.5, "mfu": 0.41, "gpu_memory_gb": 1.5, "skipped": 3, "note": "warm"}
    node = {"stage": "pretrain", "done": 210, "total": 840, "unit": "steps", "figures": figures}
    write_run(tmp_path, "a", state="running", ended=None, nodes={
        "pretrain": {**node, "state": "running"},
        "finetune": {"stage": "finetune", "state": "queued", "why": "waits"},
    })  # fmt: skip
    write_run(tmp_path, "b", state="failed", nodes={"pretrain": {**node, "state": "failed"}})
    with lock.locked(str(tmp_path / "a")):
        found = samples(prometheus.metrics(tmp_path))
    of_a = ("pretrain", "a", "pretrain")
    assert found["cloze_runs", ("running",)] == found["cloze_runs", ("failed",)] == 1
    assert found["cloze_runs", ("crashed",)] == 0
    assert found["cloze_node_done", (*of_a, "steps")] == 210
    assert found["cloze_node_total", (*of_a, "steps")] == 840
    assert found["cloze_node_queued", ("finetune", "a", "finetune")] == 1
    assert found["cloze_training_loss", of_a] == 2.5
    assert found["cloze_training_mfu_ratio", of_a] == 0.41
    assert found["cloze_training_gpu_memory_bytes", of_a] == 1.5e9
    assert found["cloze_training_skipped_steps_total", of_a] == 3
    assert {labels[1] for (name, labels) in found if "_training_" in name} == {"a"}
    crashed = samples(prometheus.metrics(tmp_path))  # nobody holds the lock of `a` any more
    assert crashed["cloze_runs", ("crashed",)] == 1
    assert ("cloze_training_loss", of_a) not in crashed


def test_a_training_in_a_queue_has_no_progress_until_it_starts(tmp_path: Path) -> None:
    """Of a command alone, which is watched, too."""
    out = str(tmp_path / "pretrain")
    directory = command_directory(tmp_path, out)
    node: Any = SimpleNamespace(stage="pretrain", section="pretrain", depends_on=())
    step: Any = SimpleNamespace(
        name="p", node=node, reason="", artifact=out, inputs={}, cached=False
    )
    labels, started = ("p", out, "pretrain"), threading.Event()
    with lock.locked(str(directory)):
        record = RunStatusFile(directory, out, [step], {}, {})
        record.node("p", RUNNING)
        reporter = NodeReporter(record, step, (), StartedNodes(), started)
        build = BuildContext(path=out, inputs={}, execution=Execution(), fingerprint="f")
        ranks: Any = SimpleNamespace(ranks=(0,), host=lambda rank: None)
        state = LaunchState("pretrain", replace(build, report=reporter), ranks, tmp_path)
        state.update([(None, {"waiting": "job 17 waits in the queue (Resources)"})])
        found = samples(prometheus.metrics(tmp_path))
        assert found["cloze_node_queued", labels] == 1
        assert ("cloze_node_done", (*labels, "steps")) not in found
        state.update([(0, {"progress": (10, 100, "steps", {"loss": 2.5})})])
        record.write()
        found = samples(prometheus.metrics(tmp_path))
        assert ("cloze_node_queued", labels) not in found
        assert found["cloze_node_done", (*labels, "steps")] == 10
        assert found["cloze_training_loss", labels] == 2.5
        state.update([(None, {"waiting": "job 17 waits in the queue again (BeginTime)"})])
    assert found["cloze_runs", ("running",)] == 0
    (crashed,) = status_file.command_records(tmp_path).values()  # nobody holds the lock any more
    assert crashed["nodes"]["p"]["state"] == "crashed"


def test_the_spool_counts_what_mlflow_has_not_received(tmp_path: Path) -> None:
    spool = Spool(tmp_path / DIRECTORY, "http://127.0.0.1:1")
    spool.start_run("a")
    size = spool.path.stat().st_size
    found = samples(prometheus.metrics(tmp_path))
    assert found["cloze_spool_unsent_bytes", ()] == size > 0
    assert 0 <= found["cloze_spool_waiting_seconds", ()] < 60
    spool.path.with_suffix(".sent").write_text(str(size))
    found = samples(prometheus.metrics(tmp_path))
    assert found["cloze_spool_unsent_bytes", ()] == found["cloze_spool_waiting_seconds", ()] == 0
    spool.close()


def test_the_last_night_has_its_end_and_its_errors(tmp_path: Path) -> None:
    assert ("cloze_night_errors", ()) not in samples(prometheus.metrics(tmp_path))
    for ended, errors in ((1.7e9, 0), (1.7e9 + 86400, 2)):
        Journal(tmp_path).append({"kind": "night", "ended": ended, "errors": errors})
    found = samples(prometheus.metrics(tmp_path))
    assert found["cloze_night_last_timestamp_seconds", ()] == 1.7e9 + 86400
    assert found["cloze_night_errors", ()] == 2


DASHBOARD = [sys.executable, "-m", "cloze", "ui", "--dashboard-only", "--dashboard-port"]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_ports(1)[0]
    command = [*DASHBOARD, str(port)]
    process = subprocess.Popen(
        [*command, "--allowed-hosts", "dashboard:8090"],
        cwd=tmp_path_factory.mktemp("dashboard"), stderr=subprocess.DEVNULL,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    until(lambda: answers(f"{url}/health") == 200, 60)
    yield url
    process.terminate()
    assert process.wait(20) == 0


def answers(url: str, host: str | None = None) -> int:
    request = urllib.request.Request(url, headers={} if host is None else {"Host": host})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def test_the_command_serves_page_and_metrics_to_allowed_hosts_only(address: str) -> None:
    assert [answers(address + path) for path in ("/", "/metrics", "/other")] == [200, 200, 404]
    assert answers(f"{address}/metrics", "dashboard:8090") == 200
    assert answers(f"{address}/metrics", "evil.example:8090") == 403


def test_a_taken_port_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        command = [*DASHBOARD, str(port)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        f"cloze: --dashboard-port {port} of 127.0.0.1 cannot be listened on; name another port\n"
    )


def test_every_metric_of_rules_and_dashboard_is_exported(tmp_path: Path) -> None:
    Journal(tmp_path).append({"kind": "night", "ended": 1.7e9, "errors": 0})
    families = text_string_to_metric_families(prometheus.metrics(tmp_path).decode())
    exported = {name for family in families for name in (family.name, f"{family.name}_total")}
    board = json.loads((MONITORING / "grafana/dashboards/cloze.json").read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked = set(re.findall(r"cloze_\w+", " ".join(expressions)))
    asked |= set(re.findall(r"cloze_\w+", (MONITORING / "alerts.yml").read_text()))
    assert len(asked) > 12
    assert asked <= exported


needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs promtool (apt install prometheus)"
)


@needs_promtool
def test_the_alert_rules_fire_when_they_should(tmp_path: Path) -> None:
    for arguments in (("test", "rules", "alerts.test.yml"), ("check", "config", "prometheus.yml")):
        done = subprocess.run(
            ["promtool", *arguments], cwd=MONITORING, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_prometheus_takes_the_metrics_and_their_names(address: str, tmp_path: Path) -> None:
    with urllib.request.urlopen(f"{address}/metrics") as answer:
        content = answer.read()
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=content, capture_output=True, check=False
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")
    port = free_ports(1)[0]
    config = (MONITORING / "prometheus.yml").read_text().replace("15s", "1s")
    config = config.replace("dashboard:8090", address.removeprefix("http://"))
    config = config.replace("alerts.yml", str(MONITORING / "alerts.yml"))
    (tmp_path / "prometheus.yml").write_text(config)
    server = subprocess.Popen(
        ["prometheus", f"--config.file={tmp_path / 'prometheus.yml'}",
         f"--storage.tsdb.path={tmp_path / 'data'}", f"--web.listen-address=127.0.0.1:{port}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        query = f'http://127.0.0.1:{port}/api/v1/query?query=cloze_slots{{kind="cpu"}}'

        def value() -> float:
            try:
                with urllib.request.urlopen(query, timeout=5) as answer:
                    result = json.load(answer)["data"]["result"]
                return float(result[0]["value"][1]) if result else 0.0
            except OSError:
                return 0.0

        assert until(value, 60) >= 1
    finally:
        server.terminate()
        server.wait(20)
