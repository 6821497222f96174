"""What compose.yaml's services are as processes of this machine: commands, environments, files.

An image brings a program; here the program is taken from this machine: see `LocalServices.command`.
A container has a name, ports and paths of its own; here each service has an address on loopback,
127.A.B.N, in place of its name, so that all ports stay those of compose.yaml, and directories
below DIR in place of its paths. `LocalServices.translate` replaces names and paths in text.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
INFRA = REPOSITORY / "infra"
ENTRYPOINT = INFRA / "images" / "entrypoint.sh"
MARK = "CLOZE_STACK_SERVICE"  # DIR:NAME, inherited by all descendants of a service
# prefixes of variables that services do not inherit from the shell
NOT_INHERITED = ("PREFECT_", "MLFLOW_", "AWS_", "PG", "FSSPEC_", "CLOZE_HOME", "CLOZE_RUNS")
STORE_PORT = "8333"
LEFT_OUT = ("grafana",)  # no package of Debian or PyPI takes the part of these images


def interpolate(value: Any) -> Any:
    """Return a parsed part of compose.yaml with `${NAME:-default}` and `$$` replaced."""
    if isinstance(value, dict):
        return {key: interpolate(item) for key, item in value.items()}
    if isinstance(value, list):
        return [interpolate(item) for item in value]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else os.environ.get(match[1]) or match[2] or ""

    return re.sub(r"\$\$|\$\{(\w+)(?::-([^}]*))?\}", replace, value)


class LocalServices:
    """The services of compose.yaml, translated to processes with their data in a directory.

    Attributes:
        specs: service name -> its mapping in compose.yaml.
        addresses: service name -> address on loopback.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        content = interpolate(yaml.safe_load((INFRA / "compose.yaml").read_text()))
        self.specs: dict[str, dict[str, Any]] = content["services"]
        digest = hashlib.sha256(str(self.directory).encode()).digest()
        network = f"127.{16 + digest[0] % 200}.{digest[1]}"
        self.addresses = {name: f"{network}.{number}" for number, name in enumerate(self.specs, 1)}
        for name, spec in self.specs.items():  # `service:NAME` shares the network of NAME
            if other := str(spec.get("network_mode", "")).partition("service:")[2]:
                self.addresses[name] = self.addresses[other]

    def of_profiles(self, profiles: set[str]) -> list[str]:
        """Return the names of the services of some profiles."""
        return [name for name, spec in self.specs.items() if profiles & set(spec["profiles"])]

    def mounts(self, name: str) -> dict[str, Path]:
        """Return path in the container -> path on this machine."""
        volumes = self.directory / "volumes"
        mounts = {"/run/secrets": self.directory / "secrets" / name, "/opt/cloze": INFRA}
        for path in self.specs[name].get("tmpfs", ()):
            mounts[path] = volumes / f"{name}{path.replace('/', '-')}"
        for volume in self.specs[name].get("volumes", ()):
            source, target = volume.split(":")[:2]
            # files next to compose.yaml are copied, because they contain addresses
            is_config = source.startswith("./") and (INFRA / source).exists()
            mounts[target] = self.directory / "config" / source if is_config else volumes / source
        return mounts

    def translate(self, text: str, name: str) -> str:
        """Return a service's text with the addresses and paths that hold on this machine."""
        mounts, hosts = self.mounts(name), "|".join(map(re.escape, self.addresses))
        paths = "|".join(map(re.escape, sorted(mounts, key=len, reverse=True)))
        pattern = (
            rf"(?<![\w.-])(?P<host>{hosts})(?=:\d)|(?<=: )(?P<line>{hosts})$"
            r"|(?P<own>0\.0\.0\.0|127\.0\.0\.1|localhost)"
            rf"|(?<![\w.])(?P<path>{paths})(?![\w-])"
        )

        def replace(match: re.Match[str]) -> str:
            if match["own"]:
                return self.addresses[name]
            if match["path"]:
                return str(mounts[match["path"]])
            return self.addresses[match["host"] or match["line"]]

        return re.sub(pattern, replace, text, flags=re.MULTILINE)

    def command(self, name: str, words: list[str] | None = None) -> list[str]:
        """Return the command of a service; `words` stand for the one of compose.yaml.

        Raises:
            SystemExit: this machine has no program in place of the image.
        """
        given = words or self.specs[name].get("command", [])
        words = [
            self.translate(word, name) for word in ([given] if isinstance(given, str) else given)
        ]
        image = self.specs[name]["image"].partition("@")[0].rpartition("/")[2].partition(":")[0]
        match image:
            case "cloze":  # its programs are modules of this Python
                if words[0] in ("cloze", "mlflow", "prefect"):
                    words.insert(0, "-m")
                program = words[1:] if words[0] == "python" else words
                return ["sh", str(ENTRYPOINT), sys.executable, *program]
            case "seaweedfs":  # another S3 server on a directory; it asks for no key
                data = str(self.directory / "volumes" / "store")
                program = [sys.executable, str(REPOSITORY / "tests" / "local_store.py"), data]
                return [*program, self.addresses[name], STORE_PORT]
            case "flink":
                return [f"{flink_home()}/bin/{words[0]}.sh", "start-foreground"]
            case "prometheus":
                return ["prometheus", *words]
            case "postgres" | "redis" | "nginx-unprivileged":
                return words
        sys.exit(f"{name}: nothing on this machine takes the part of the image {image}")

    def health(self, name: str) -> list[str] | None:
        """Return the command of a service's health check; None: it has none."""
        check = self.specs[name].get("healthcheck")
        if check is None:
            return None
        kind, *words = check["test"]
        if name == "store":
            words = ["python", "/opt/cloze/admin.py", "check", f"tcp://0.0.0.0:{STORE_PORT}"]
        words = [self.translate(word, name) for word in words]
        if words[0] == "python":
            words[0] = sys.executable
        return ["sh", "-c", *words] if kind == "CMD-SHELL" else words

    def environment(self, name: str) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(NOT_INHERITED)}
        postgres = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)
        own = self.specs[name].get("environment", {})
        return {
            **inherited,
            "PATH": ":".join([*postgres, inherited["PATH"], "/usr/sbin"]),
            "PYTHONPATH": f"{REPOSITORY / 'src'}:{inherited.get('PYTHONPATH', '')}",
            "SECRETS_DIR": str(self.directory / "secrets" / name),
            MARK: f"{self.directory}:{name}",
            **{key: self.translate(str(value), name) for key, value in own.items()},
        }

    def prepare(self, name: str, environment: dict[str, str]) -> str | None:
        """Make a service's directories and files; return the user that it must run as, if any."""
        for target, path in self.mounts(name).items():
            if self.directory / "config" in path.parents:
                self._copy_config(name, path)
            elif target != "/opt/cloze":
                path.mkdir(parents=True, exist_ok=True)
        for secret in self.specs[name].get("secrets", ()):  # a service sees its own only
            shutil.copy(self.directory / "secrets" / secret, self.mounts(name)["/run/secrets"])
        if "FLINK_PROPERTIES" in environment:
            self._prepare_flink(name, environment)
        return self._prepare_postgres(environment) if name == "postgres" else None

    def _copy_config(self, name: str, target: Path) -> None:
        source = INFRA / target.relative_to(self.directory / "config")
        for file in [source] if source.is_file() else filter(Path.is_file, source.rglob("*")):
            copy = target / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(self.translate(file.read_text(), name))

    def _prepare_postgres(self, environment: dict[str, str]) -> str | None:
        """Make the database cluster, as the image's entry point does."""
        user = "postgres" if os.geteuid() == 0 else None  # PostgreSQL refuses to run as root
        cluster = Path(environment["PGDATA"])
        if (cluster / "PG_VERSION").exists():
            return user
        password = cluster.parent / "password"
        password.touch(mode=0o600)
        password.write_text((self.directory / "secrets" / "postgres_password").read_text())
        if user:
            for path in (cluster.parent, password):
                shutil.chown(path, user, user)
        initdb = ["initdb", f"--username={environment['POSTGRES_USER']}", "--encoding=UTF8"]
        initdb += ["--auth=scram-sha-256", f"--pwfile={password}", "--locale=C.UTF-8"]
        subprocess.run(
            [*guarded(user), *initdb, str(cluster)],
            stdout=subprocess.DEVNULL, env=environment, check=True, cwd="/",
        )  # fmt: skip
        password.unlink()
        return user

    def _prepare_flink(self, name: str, environment: dict[str, str]) -> None:
        """Write Flink's configuration, as its image does, and hosts: here it is all local names."""
        directory, address = self.directory / "config" / name, self.addresses[name]
        shutil.copytree(f"{flink_home()}/conf", directory, dirs_exist_ok=True)
        java = yaml.safe_load((directory / "config.yaml").read_text())["env"]["java"]["opts"]
        settings = {
            "env.java.opts.all": java["all"],  # what Java 17 needs
            "rest.address": self.addresses["flink-jobmanager"],
            "taskmanager.host": address,
            "io.tmp.dirs": f"{directory}/tmp",
            **yaml.safe_load(environment["FLINK_PROPERTIES"]),
        }
        (directory / "tmp").mkdir(exist_ok=True)
        (directory / "config.yaml").write_text(yaml.safe_dump(settings, width=10_000))
        hosts = [entry.partition(":")[0] for entry in self.specs[name].get("extra_hosts", ())]
        names = " ".join(["localhost", os.uname().nodename, *hosts])
        (directory / "hosts").write_text(f"{address} {names}\n")
        environment |= {"FLINK_CONF_DIR": str(directory), "FLINK_LOG_DIR": str(directory)}
        environment["JVM_ARGS"] = (
            f"{environment.get('JVM_ARGS', '')} -Djdk.net.hosts.file={directory}/hosts"
        )

    def write_env(self) -> None:
        """Write `env.sh`: addresses and logins for a shell."""
        environment = self.environment("tools")
        self.prepare("tools", environment)
        names = [*self.specs["tools"]["environment"], "SECRETS_DIR"]
        lines = [
            f"export {n}={shlex.quote(environment[n])}"
            for n in names
            if n not in ("HOME", "PREFECT_HOME")
        ]
        logins = ENTRYPOINT.read_text().partition("set -eu\n")[2].rpartition("exec ")[0]
        text = "\n".join([*lines, logins])
        (self.directory / "env.sh").write_text(text)


def guarded(user: str | None = None) -> list[str]:
    """Return words before a command: it ends with its parent, and runs as `user`."""
    account = ["--reuid", user, "--regid", user, "--init-groups"] if user else []
    return ["setpriv", "--pdeathsig", "TERM", *account, "--"]


def flink_home() -> str:
    """Return the directory of Flink, which is put together from PyPI's packages once."""
    result = subprocess.run(
        ["bash", str(INFRA / "flink" / "cluster.sh"), "assemble", "."],
        env={**os.environ, "PYTHON": sys.executable}, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return result.stdout.strip()
