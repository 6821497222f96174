"""Prefect, MLflow and the dashboard behind nginx, with a certificate of a team's own CA."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloze.core.processes import free_ports
from tests.conftest import REPOSITORY
from tests.flows.ui.waiting import until
from tests.operations.mlflow_server import Server
from tests.operations.servers import Operations

NAME = "cloze.test"
LISTENS = {"prefect": 4443, "mlflow": 5443, "dashboard": 8443}  # ports of infra/proxy/nginx.conf
CLIENT = 'mount --bind "$0" /etc/hosts && exec "$@"'  # in a mount namespace of its own
needs_root_and_nginx = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("nginx") is None or shutil.which("unshare") is None,
    reason="needs nginx, and root for a name server of its own",
)


def openssl(place: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["openssl", *arguments], cwd=place, capture_output=True, text=True, check=True
    )
    return done.stdout


def make_certificates(place: Path) -> None:
    """A CA (ca.crt), and a certificate of its own for the name (server.crt, server.key)."""
    key = ("-newkey", "rsa:2048", "-nodes", "-keyout")
    openssl(
        place, "req", "-x509", *key, "ca.key", "-out", "ca.crt", "-days", "2", "-subj",
        "/CN=Team CA", "-addext", "keyUsage=critical,keyCertSign",
    )  # fmt: skip
    openssl(place, "req", *key, "server.key", "-out", "server.csr", "-subj", f"/CN={NAME}")
    (place / "names").write_text(f"subjectAltName=DNS:{NAME}\nauthorityKeyIdentifier=keyid\n")
    openssl(
        place, "x509", "-req", "-in", "server.csr", "-CA", "ca.crt", "-CAkey", "ca.key",
        "-CAcreateserial", "-out", "server.crt", "-days", "2", "-extfile", "names",
    )  # fmt: skip


class Site:
    """The three servers behind nginx; `cloze` runs where their name leads to this machine."""

    def __init__(self, place: Path) -> None:
        self.place = place
        make_certificates(place)
        page_port, *ports = free_ports(4)
        self.ports = dict(zip(LISTENS, ports, strict=True))
        self.operations = Operations(place / "home", PREFECT_SERVER_API_AUTH_STRING="user:word")
        self.processes: list[subprocess.Popen[bytes]] = []
        self.mlflow = Server(place)
        names = (f"{NAME}:{self.ports['mlflow']}", f"127.0.0.1:{self.mlflow.port}")
        os.environ["MLFLOW_SERVER_ALLOWED_HOSTS"] = ",".join(names)
        self.mlflow.start()
        del os.environ["MLFLOW_SERVER_ALLOWED_HOSTS"]
        self._start(
            sys.executable, "-m", "cloze", "ui", "--dashboard-only", "--dashboard-port", str(page_port),
            CLOZE_RUNS_DIR=str(self.operations.runs),
        )  # fmt: skip
        prefect_port = self.operations.api.removesuffix("/api").rpartition(":")[2]
        config = (REPOSITORY / "infra/proxy/nginx.conf").read_text()
        for old, new in (
            ("/tmp/", f"{place}/"),  # first: `place` may be below it
            ("/run/secrets/tls_certificate", str(place / "server.crt")),
            ("/run/secrets/tls_key", str(place / "server.key")),
            ("prefect-server:4200", f"127.0.0.1:{prefect_port}"),
            ("mlflow:5000", f"127.0.0.1:{self.mlflow.port}"),
            ("dashboard:8090", f"127.0.0.1:{page_port}"),
            *((f"0.0.0.0:{LISTENS[name]}", f"127.0.0.1:{self.ports[name]}") for name in LISTENS),
        ):
            assert old in config
            config = config.replace(old, new)
        (place / "nginx.conf").write_text(config)
        self._start("nginx", "-c", str(place / "nginx.conf"), "-g", "daemon off; user root;")
        hosts = Path("/etc/hosts").read_text() + f"\n127.0.0.1 {NAME}\n"
        (place / "hosts").write_text(hosts)

    def _start(self, *command: str, **environment: str) -> None:
        self.processes.append(
            subprocess.Popen(
                command, env={**os.environ, **environment}, cwd=self.place,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
        )  # fmt: skip

    def url(self, service: str) -> str:
        return f"https://{NAME}:{self.ports[service]}"

    def client(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """A program where the name is known, the CA is not unless `environment` says so."""
        return subprocess.run(
            ["unshare", "--mount", "sh", "-c", CLIENT, str(self.place / "hosts"), *command],
            cwd=self.place, capture_output=True, text=True, check=False,
            env={
                **self.operations.environment,
                "PREFECT_API_URL": f"{self.url('prefect')}/api",
                "PREFECT_API_AUTH_STRING": "user:word",
                "MLFLOW_TRACKING_URI": self.url("mlflow"),
                "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
                **environment,
            },
        )  # fmt: skip

    def cloze(self, *arguments: str, trusts: bool) -> subprocess.CompletedProcess[str]:
        authority = str(self.place / "ca.crt")
        trust = {"SSL_CERT_FILE": authority, "REQUESTS_CA_BUNDLE": authority} if trusts else {}
        return self.client(sys.executable, "-m", "cloze", *arguments, **trust)

    def status(self, service: str, page: str = "/", *options: str) -> str:
        """HTTP status of a page."""
        return self.client(
            "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--cacert", "ca.crt", *options,
            self.url(service) + page,
        ).stdout  # fmt: skip

    def close(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
            process.wait(20)
        self.mlflow.kill()
        self.operations.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("tls"))
    try:
        until(lambda: site.status("dashboard") == "401", 60)
        yield site
    finally:
        site.close()


@pytest.mark.soak
@pytest.mark.timeout(600)
@needs_root_and_nginx
def test_whoever_does_not_trust_the_ca_is_told_what_to_set(site: Site) -> None:
    refused = site.cloze("deploy", trusts=False)
    assert refused.returncode == 1
    assert "certificate is not trusted; set SSL_CERT_FILE" in refused.stderr
    found = json.loads(site.cloze("doctor", "--json", trusts=False).stdout)["checks"]
    servers = [one for one in found if one["check"] in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI")]
    assert [one["ok"] for one in servers] == [False, False]
    assert all("untrusted certificate" in one["found"] for one in servers)


@pytest.mark.soak
@pytest.mark.timeout(600)
@needs_root_and_nginx
def test_a_run_reaches_prefect_and_mlflow_by_tls(site: Site) -> None:
    deployed = site.cloze("deploy", "--json", trusts=True)
    assert deployed.returncode == 0, deployed.stderr
    assert len(json.loads(deployed.stdout)["deployments"]) == 7
    done = site.cloze("run", "sample", "--until", "corpus", trusts=True)
    assert done.returncode == 0, done.stderr
    assert f"Prefect: {site.url('prefect')}/runs/flow-run/" in done.stdout + done.stderr
    found = site.mlflow.client().search_runs(["1"])
    assert any(run.info.run_name.startswith("sample") for run in found)


@pytest.mark.soak
@pytest.mark.timeout(600)
@needs_root_and_nginx
def test_no_server_is_open_without_a_login_but_mlflow(site: Site) -> None:
    """MLflow's own login is its `basic-auth` app, which the stack starts it with."""
    for service, page in (("dashboard", "/metrics"), ("prefect", "/api/flows/")):
        assert site.status(service, page) == "401"
        assert site.status(service, page, "-u", "user:other") == "401"
    assert site.status("dashboard", "/metrics", "-u", "user:word") == "200"
    headers = site.client("curl", "-sI", "--cacert", "ca.crt", site.url("dashboard")).stdout
    assert 'www-authenticate: basic realm="cloze"' in headers.lower(), "browsers ask for a login"
