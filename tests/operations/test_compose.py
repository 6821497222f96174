"""infra/compose.yaml keeps its rules, and the image's steps run."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import REPOSITORY

INFRA = REPOSITORY / "infra"
TEXT = (INFRA / "compose.yaml").read_text()
CONTENT = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = CONTENT["services"]
JOBS = {name for name, service in SERVICES.items() if service.get("restart") == "no"}
names = pytest.mark.parametrize("name", SERVICES)


@names
def test_a_service_is_pinned_limited_and_belongs_to_a_profile(name: str) -> None:
    service = SERVICES[name]
    default = re.fullmatch(r"\$\{[A-Z_]+_?IMAGE:-([^}]+)\}", service["image"])
    assert default, "its image is an argument, so that it can be set to a digest"
    assert re.search(r":v?\d+\.\d+", default[1]), default[1]
    assert service["deploy"]["resources"]["limits"]["memory"]
    assert set(service["profiles"]) <= {"core", "data", "gpu", "monitoring", "tls", "tools"}
    assert service["profiles"]


@names
def test_a_long_service_restarts_and_has_a_health_check(name: str) -> None:
    service = SERVICES[name]
    assert name in JOBS or (
        service["restart"] == "unless-stopped" and service["healthcheck"]["test"]
    )


@names
def test_a_service_waits_for_health(name: str) -> None:
    for other, dependency in SERVICES[name].get("depends_on", {}).items():
        condition = dependency["condition"]
        if other in JOBS:
            assert condition == "service_completed_successfully"
        else:
            shares = SERVICES[name].get("network_mode") == f"service:{other}"
            assert condition == ("service_started" if shares else "service_healthy")


def test_what_keeps_an_address_restarts_with_its_owner() -> None:
    """When Compose restarts it: nginx has looked it up, the workers are in its network."""
    for name in ("proxy", "beam-workers-1", "beam-workers-2"):
        assert all(other["restart"] for other in SERVICES[name]["depends_on"].values())


def test_only_loopback_is_published() -> None:
    for service in SERVICES.values():
        for port in service.get("ports", ()):
            assert re.match(r"(127\.0\.0\.1|\$\{PUBLIC_ADDRESS:-127\.0\.0\.1\}):\d+:\d+$", port), (
                port
            )


def test_secrets_are_files_that_exist_for_their_services_only() -> None:
    assert all(list(secret) == ["file"] for secret in CONTENT["secrets"].values())
    for service in SERVICES.values():
        assert set(service.get("secrets", ())) <= set(CONTENT["secrets"])
        for key, value in service.get("environment", {}).items():
            assert "/run/secrets/" in value or not re.search(
                "PASSWORD|SECRET|TOKEN|AUTH_STRING", key
            )
    assert "://cloze:" not in TEXT


def test_volumes_have_names() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in CONTENT["volumes"] or source.startswith(("./", "${BACKUP_DIR"))


def test_the_example_of_env_names_variables_of_the_file_and_no_secret() -> None:
    lines = (INFRA / ".env.example").read_text().splitlines()
    variables = {line.lstrip("#").split("=")[0] for line in lines if re.match(r"#?[A-Z_]+=", line)}
    assert variables - {"COMPOSE_PROFILES"} <= set(re.findall(r"\$\{(\w+)", TEXT))
    assert not [name for name in variables if re.search("PASSWORD|SECRET|TOKEN", name)]


@pytest.mark.parametrize(
    ("given", "set_to"), [((), None), (("BACKUP=/srv/monday",), "/srv/monday")]
)
def test_make_backup_leaves_the_directory_to_env(
    given: tuple[str, ...], set_to: str | None
) -> None:
    for target in ("backup", "restore"):
        done = subprocess.run(
            ["make", "--dry-run", target, *given], cwd=REPOSITORY, text=True, check=True,
            capture_output=True,
        )  # fmt: skip
        found = re.search(r"BACKUP_DIR=(\S*)", done.stdout)
        assert (found and found[1]) == set_to


def test_the_file_is_valid_by_the_compose_specification(tmp_path: Path) -> None:
    pytest.importorskip("check_jsonschema", reason="check-jsonschema is not installed")
    subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec",
            str(INFRA / "compose.yaml")],
        check=True,
    )  # fmt: skip


def docker_compose() -> list[str] | None:
    """Words of a command, Docker Compose 2 or later; None: this machine has none."""
    for words in (["docker", "compose"], ["docker-compose"]):
        done = shutil.which(words[0]) and subprocess.run(
            [*words, "version", "--short"], capture_output=True, text=True, check=False
        )
        if done and re.match(r"v?([2-9]|\d\d)\.", done.stdout):
            return words
    return None


@pytest.mark.parametrize("profiles", ["core", "data", "core,gpu", "monitoring", "core,tls,tools"])
def test_docker_compose_reads_what_the_stack_without_containers_reads(profiles: str) -> None:
    """Commands, environments and health checks; here no daemon is asked."""
    if (command := docker_compose()) is None:
        pytest.skip("Docker Compose 2 is not installed")
    done = subprocess.run(
        [*command, "--project-directory", str(INFRA), "-f", str(INFRA / "compose.yaml"),
            "--env-file", os.devnull, "config", "--format", "json"],
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "COMPOSE_PROFILES": profiles},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    code = "import json, pathlib, tests.operations.local_services as l; s = l.LocalServices(pathlib.Path('x')).specs"
    specs = subprocess.run(
        [sys.executable, "-c", f"{code}; print(json.dumps(s))"], check=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True,
    )  # fmt: skip
    local = json.loads(specs.stdout)
    services = json.loads(done.stdout)["services"]
    wanted = {n for n, s in SERVICES.items() if set(s["profiles"]) & set(profiles.split(","))}
    assert set(services) == wanted
    for name, service in services.items():
        given = local[name].get("command")
        assert service["command"] == ([given] if isinstance(given, str) else given)
        assert (service.get("environment") or {}) == local[name].get("environment", {})
        test = service.get("healthcheck", {}).get("test")
        assert test == local[name].get("healthcheck", {}).get("test")


def test_processes_get_addresses_and_paths_of_this_machine(tmp_path: Path) -> None:
    """The stack without containers replaces names and paths in what it reads from compose.yaml."""
    code = "import json, sys; from tests.operations.local_services import LEFT_OUT, LocalServices\n"
    code += "from pathlib import Path; s = LocalServices(Path(sys.argv[1]))\n"
    code += "n = set(s.of_profiles({'core', 'gpu', 'monitoring', 'tls'})) - {*LEFT_OUT}\n"
    code += "print(json.dumps([s.addresses, {i: [s.command(i), s.environment(i)] for i in n}]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    addresses, services = json.loads(done.stdout)
    assert len(set(addresses.values())) == len(SERVICES) - 2  # Beam's workers share a network
    for name, (command, environment) in services.items():
        own = {key: environment[key] for key in SERVICES[name].get("environment", {})}
        text = " ".join([*command, *own.values()])
        assert "0.0.0.0" not in text
        assert not re.search(rf"\b({'|'.join(SERVICES)}):\d", text), text
        assert not re.search(r"(^|[\s=])/(data|run/secrets|opt/cloze|var/lib/postgresql)", text), (
            text
        )
    assert (
        services["worker"][1]["PREFECT_API_URL"] == f"http://{addresses['prefect-server']}:4200/api"
    )
    assert services["worker"][1]["CLOZE_HOME"] == str(tmp_path / "volumes" / "work")
    assert "PREFECT_SERVER_API_AUTH_STRING" not in services["prefect-server"][1]


def test_up_starts_what_is_missing_and_failed_jobs_again() -> None:
    """A restore that fails ends what it has started."""
    pytest.importorskip("localbucket")
    pytest.importorskip("boto3")
    if shutil.which("setpriv") is None or not sys.platform.startswith("linux"):
        pytest.skip("needs setpriv")

    # not below pytest's directory, which PostgreSQL's user may not enter
    directory = Path(tempfile.mkdtemp(prefix="cloze-stack-"))
    directory.chmod(0o711)

    def stack(*calls: str) -> subprocess.CompletedProcess[str]:
        code = "from tests.operations import local_stack as stack; import sys, pathlib\n"
        code += "d = pathlib.Path(sys.argv[1])\n"
        code += "up = lambda *names: stack.Stack(d, list(names)).up()\n"
        return subprocess.run(
            [sys.executable, "-c", code + "\n".join(calls), str(directory)],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True,
            check=False, timeout=120,
        )  # fmt: skip

    def states() -> dict[str, str]:
        services = json.loads((directory / "state.json").read_text())["services"]
        return {name: service["state"] for name, service in services.items()}

    data = directory / "volumes" / "store"
    data.mkdir(parents=True)
    (data / "mlflow").touch()  # in the way of the bucket
    try:
        assert stack("up('store')").returncode == 0
        assert states() == {"store": "healthy"}
        assert "not up" in stack("up('buckets')").stderr
        assert states() == {"store": "healthy", "buckets": "failed"}
        (data / "mlflow").unlink()
        assert stack("up('buckets')").returncode == 0
        assert states() == {"store": "healthy", "buckets": "done"}
        if list(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
            restored = stack("stack.Stack(d, []).restore('/nonexistent')")
            assert "/nonexistent is no complete backup" in restored.stderr
            assert not (directory / "state.json").exists()
    finally:
        stack("stack.Stack(d, []).down()")
        shutil.rmtree(directory, ignore_errors=True)


def test_the_image_has_no_root_and_no_compiler() -> None:
    last = (INFRA / "images" / "Containerfile").read_text().rpartition("\nFROM ")[2]
    assert re.search("^USER cloze$", last, re.MULTILINE)
    assert "HEALTHCHECK" in last
    assert not re.search(r"g\+\+|gcc|build-essential|-dev\b", last)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_image_runs_a_preset(tmp_path: Path) -> None:
    """Built by buildah in a chroot, on a Debian root that mmdebstrap makes: no registry is needed.

    CLOZE_IMAGE_BUILD holds further words for `buildah bud`, such as volumes with wheels and a CA; it
    may be empty.
    """
    if "CLOZE_IMAGE_BUILD" not in os.environ:
        pytest.skip("set CLOZE_IMAGE_BUILD to build an image, from gigabytes of a package index")
    lacking = [name for name in ("buildah", "mmdebstrap") if shutil.which(name) is None]
    if lacking or os.geteuid() != 0:
        pytest.skip(f"an image is built by root with {', '.join(lacking) or 'buildah'}")

    def run(*words: str) -> str:
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=REPOSITORY)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout.strip()

    root = tmp_path / "root.tar"
    run("mmdebstrap", "--variant=minbase", "--include=ca-certificates", "bookworm", str(root))
    base = run("buildah", "from", "scratch")
    run("buildah", "add", base, str(root), "/")
    run("buildah", "commit", "--rm", base, "localhost/cloze-test-base:12")
    run(
        "buildah", "bud", "--format", "docker", "--isolation", "chroot", "--network", "host",
        "--build-arg", "BASE=localhost/cloze-test-base:12", "--layers",
        *shlex.split(os.environ.get("CLOZE_IMAGE_BUILD", "")),
        "-f", "infra/images/Containerfile", "-t", "localhost/cloze-test:1", ".",
    )  # fmt: skip
    image = run("buildah", "from", "localhost/cloze-test:1")
    try:
        inside = ("buildah", "run", "--isolation", "chroot", "--network", "host", image, "--")
        assert run(*inside, "id", "-un") == "cloze"
        assert "g++" not in run(*inside, "sh", "-c", "ls /usr/bin")
        run(*inside, "test", "-s", "/opt/cloze/sbom.cdx.json")
        run(*inside, "sh", "/opt/cloze/entrypoint.sh", "cloze", "run", "sample", "--no-prefect")
    finally:
        run("buildah", "rm", image)
