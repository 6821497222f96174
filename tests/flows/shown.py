"""What Cloze shows of made-up facts, as text: pages, pictures, tables, lines, metrics.

    python -m tests.flows.shown     writes shown.txt beside it

A picture of matplotlib is described by what is drawn, since its bytes differ by version. Colours of
a terminal are its codes, with `␛` for the escape.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from starlette.testclient import TestClient

from cloze.flows.nightly import result as nightly
from cloze.flows.nightly.journal import Change, Journal
from cloze.flows.report import plots
from cloze.flows.ui import dashboard, prometheus
from cloze.labs.inside import plots as inside
from tests.flows.nightly.test_journal import champion, night
from tests.flows.nightly.test_trend_page import result as night_result
from tests.flows.shown_reports import described, pictures, report
from tests.flows.shown_views import tables, views
from tests.flows.ui.test_page import write_run

FILE = Path(__file__).with_suffix(".txt")
NOW = 1.7e9


def _pages(runs: Path) -> Iterator[tuple[str, str]]:
    nodes = {
        "pretrain": {"stage": "pretrain", "state": "running", "done": 210, "total": 840, "unit": "steps",
                     "figures": {name: number + 0.5 for number, name in enumerate(prometheus.FIGURES)}},
        "tag": {"stage": "finetune", "state": "queued", "why": "waits"},
        "tag@2": {"stage": "finetune", "state": "queued", "why": "waits"},
        "vocab": {"stage": "vocab", "state": "failed", "error": "it broke", "why": ""},
        "corpus": {"stage": "corpus", "state": "cached"},
    }  # fmt: skip
    write_run(runs, "going", state="finished", ended=NOW - 5, started=NOW - 65, nodes=nodes)
    write_run(
        runs,
        "ended",
        state="failed",
        ended=NOW - 99,
        started=NOW - 199,
        error="no disk",
        nodes={},
        prefect="f1",
    )
    for name in ("report-1/report.html", "corpus-2/card.html"):
        (runs / "ended" / name).parent.mkdir(parents=True)
        (runs / "ended" / name).write_text("<main>made</main>")
    Journal(runs).append(night(champion(8000, since=NOW - 7200), ended=NOW - 60, errors=2))
    with pytest.MonkeyPatch.context() as patch:
        holder = SimpleNamespace(slot="gpu-0", run="going", node="pretrain", pid=7)
        cores = [SimpleNamespace(slot=f"cpu-{n}", run="going", node="tag", pid=7) for n in range(2)]
        patch.setattr(dashboard.slots, "holders", lambda: [holder, *cores])
        patch.setattr(dashboard.slots, "machine", lambda: SimpleNamespace(cpus=8, gpus=("0", "1")))
        yield "metrics", prometheus.metrics(runs).decode()
        record = json.loads((runs / "going" / "_status" / "1.json").read_text())
        live_record = {"going": {**record, "state": "running"}}
        families = [
            f"{sample.name} {sorted(sample.labels.items())} {sample.value}"
            for family in prometheus._node_metrics(live_record) for sample in family.samples
        ]  # fmt: skip
        yield "metrics of a run", "\n".join(families)
        servers = {
            "prefect": "http://127.0.0.1:4200", "mlflow": "http://127.0.0.1:5000", "state": "up", "login": "/tmp/no-such-login",
            "services": {"prefect": {"title": "Prefect", "state": "up", "restarts": 1, "last": "stopped",
                                     "address": "a", "since": NOW - 75}},
        }  # fmt: skip
        patch.setattr(dashboard.server_addresses, "servers", lambda runs: servers)
        patch.setattr(dashboard.secrets, "token_urlsafe", lambda size: f"nonce{size}")
        patch.setattr(dashboard.spool_state, "home", lambda directory, url: f"{url}/home")
        client = TestClient(dashboard.application(runs, 8090), base_url="http://127.0.0.1:8090")
        for path in (
            "/",
            "/trend",
            "/report/ended",
            "/card/ended",
            "/card/going",
            "/health",
            "/metrics",
        ):
            answer = client.get(path)
            text = answer.text if path != "/metrics" else ""
            headers = sorted(
                set(answer.headers.items()) - {("content-length", str(len(answer.content)))}
            )
            yield f"GET {path}", f"{answer.status_code} {headers}\n{text}"
        servers["login"] = False
        yield (
            "rows",
            json.dumps(
                [
                    dashboard.run_rows(runs, servers),
                    dashboard.server_rows(servers, {}),
                    dashboard.slot_rows(),
                ]
            ),
        )


def _nights() -> Iterator[tuple[str, str]]:
    nights = [
        night(champion(n), results=[night_result(n, 0.5 + n / 100), night_result(n + 50, 0.4)], started=86_400.0 * n,
              ended=86_400.0 * n + 60, failed={"k": "broke"} if n == 2 else {}, why=f"why {n}", errors=0)
        for n in range(1, 4)
    ]  # fmt: skip
    nights.append(night(started=86_400.0 * 5))
    changes = [
        Change(
            time=86_400.0 * n, kind="promoted", champion=champion(n), replaced=None, why=f"why {n}"
        )
        for n in (1, 2)
    ]
    yield "trend", nightly.render_trend(nights, changes, "Europe/Zurich")
    yield "trend of nothing", nightly.render_trend([], [], "UTC")
    wild = night_result(3, 0.5)
    wild["perplexity"] = 1e7
    yield "trend of one", nightly.render_trend([night(results=[wild])], [], "UTC")


@contextmanager
def _still() -> Iterator[None]:
    """Clocks that stand, in UTC, and pictures that are described."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        patch.setattr(time, "time", lambda: NOW)
        for module in (plots, inside, nightly):
            patch.setattr(module, "svg", described)
        yield
    time.tzset()


def lines() -> Iterator[str]:
    """Yield all that is shown, each thing below its name."""
    with _still(), TemporaryDirectory() as place:
        runs = Path(place, "runs")
        runs.mkdir()
        for part in (
            pictures(),
            report(),
            tables(),
            views(),
            _pages(runs),
            _nights(),
        ):
            for name, text in part:
                yield f"## {name}"
                plain = re.sub(r"<style.*?</style>", "<style>", text, flags=re.DOTALL)
                plain = plain.replace(str(runs), "RUNS").replace(os.uname().nodename, "HOST")
                yield from (line.rstrip() for line in plain.splitlines() if line.strip())


if __name__ == "__main__":
    FILE.write_text("".join(f"{line}\n" for line in lines()), encoding="utf-8")
