"""Build a release and try it as a stranger would: `make release`.

From the files of the commit, and no others, both distributions are built twice, in two places; a
byte that differs ends the release. The wheels are checked by twine and installed into an empty
environment of each Python given. `cloze doctor`, `cloze run sample` and `cloze ui` run there, from
an empty directory with an empty home. `dist/` then holds the wheels and source archives,
`SHA256SUMS`, the bill of materials of what was installed (CycloneDX) and the release's notes, from
CHANGELOG.md.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
DISTRIBUTIONS = (Path(), Path("infra", "cloze-pretraining"))
FOLDERS = r"[^/]+\.dist-info|cloze/flows/data/samples|cloze/\w+(?=/)|cloze"  # of wheels
BIN = Path(sys.executable).parent
# what a shell of a stranger holds, and where pip finds packages
KEPT = ("PATH", "LANG", "TMPDIR", "PIP_CERT", "PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_CONSTRAINT")
KEPT += ("PIP_EXTRA_INDEX_URL",)  # of torch without CUDA, where a runner's disk has no room for it
SERVERS_SECONDS = 600  # on a loaded machine the three servers take minutes


def run(*command: str | Path, where: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Return what a command prints; its failure ends the release and shows all of it."""
    result = subprocess.run(
        [str(part) for part in command],
        cwd=where or REPOSITORY,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if result.returncode:
        sys.exit(f"{result.stdout}\n`{' '.join(map(str, command))}` ended with {result.returncode}")
    return str(result.stdout)


def version() -> str:
    """Return the version that both distributions and CHANGELOG.md name."""
    found: dict[str, Path] = {}
    for folder in DISTRIBUTIONS:
        text = (REPOSITORY / folder / "pyproject.toml").read_text()
        # every mention: the second distribution requires the first by it
        for number in re.findall(
            r'^version = "(.+)"|cloze-pretraining-base\[.+\]==(.+)"', text, re.M
        ):
            found.setdefault("".join(number), folder / "pyproject.toml")
    if len(found) != 1:
        sys.exit("versions differ: " + ", ".join(f"{path} has {v}" for v, path in found.items()))
    (number,) = found
    return number


def notes(number: str) -> str:
    """Return what CHANGELOG.md says of a version; a commit with a tag is held to its heading."""
    text = (REPOSITORY / "CHANGELOG.md").read_text()
    match = re.search(rf"^## (.*\b{re.escape(number)}\b.*)\n((?:(?!## ).*\n)*)", text, re.MULTILINE)
    if match is None or not match[2].strip():
        sys.exit(f"CHANGELOG.md has no entry for {number}")
    tags = run("git", "tag", "--points-at", "HEAD").split()
    if tags and f"v{number}" not in tags:
        sys.exit(f"the commit's tag is {', '.join(tags)}, its version {number}")
    if tags and "Unreleased" in match[1]:
        sys.exit(f"CHANGELOG.md says '{match[1]}': write the version and its date")
    return match[2].strip() + "\n"


def urls(repository: str) -> str:
    """Return the addresses of a project whose files are at `repository`; none without one.

    The files name no forge, since the release's workflow knows where it runs.
    """
    if not repository:
        return ""
    places = {"Source": "", "Issues": "/issues", "Changelog": "/blob/main/CHANGELOG.md"}
    lines = [f'{name} = "{repository}{path}"' for name, path in places.items()]
    return "\n".join(["", "[project.urls]", *lines, ""])


def missing(repository: str) -> list[str]:
    """Return what only the publishing organisation can fill in, and has not (CONTRIBUTING.md)."""
    lines = (REPOSITORY / ".github" / "CODEOWNERS").read_text().splitlines()
    rules = [words for line in lines if (words := line.split("#")[0].split())]
    is_address = re.fullmatch(r"https://[^\s\"/]+/[^\s\"]+", repository)
    checks = {
        "REPOSITORY_URL is no https:// address": is_address,
        ".github/CODEOWNERS names no owner of *": any(len(r) > 1 and r[0] == "*" for r in rules),
        ".github/CODEOWNERS still says OWNER": not any("OWNER" in " ".join(r) for r in rules),
    }
    return [sentence for sentence, is_filled in checks.items() if not is_filled]


def absolute(readme: str, repository: str, number: str) -> str:
    """Return a page whose links to files lead to the release's tag: PyPI shows it without them."""

    def link(match: re.Match[str]) -> str:
        kind = "raw" if match[1] else "blob"
        return f"{match[1]}[{match[2]}]({repository}/{kind}/v{number}/{match[3]})"

    if not repository:
        return readme
    return re.sub(r"(!?)\[([^]\[]*)\]\((?![a-z]+:|#)([^)\s]+)\)", link, readme)


def check_contents(wheel: bytes, tracked: list[str]) -> None:
    """End the release unless the wheel holds the packages and their data, and nothing else.

    A file that is tracked and not packed is a template or a table that an installed Cloze misses.
    """
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    wanted = set()
    for name in tracked:
        top, _, below = name.partition("/")
        if top in ("samples", "prefect.yaml", "constraints.txt"):
            wanted.add(f"cloze/flows/data/{name}")
        elif top == "src":
            wanted.add(below)
        elif top in ("core", "pipeline", "model", "flows", "labs"):
            wanted.add(f"cloze/{name}")
    wanted.discard("cloze/labs/README.md")  # for those who read the repository
    if packed != wanted:
        lost, foreign = sorted(wanted - packed)[:5], sorted(packed - wanted)[:5]
        sys.exit(f"the wheel misses {lost} and holds {foreign}, which are no files of the packages")


def contents(wheel: bytes) -> str:
    """Return a table of what the wheel holds: files and kB by folder; CONTRIBUTING.md says why."""
    folders: dict[str, list[int]] = {}
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        for entry in archive.infolist():
            name = re.match(FOLDERS, entry.filename)
            folders.setdefault(name[0] if name else entry.filename, []).append(entry.file_size)
    rows = sorted(folders.items(), key=lambda row: -sum(row[1]))
    return "\n".join(f"{len(of):5} files {sum(of) / 1e3:9,.0f} kB  {name}" for name, of in rows)


def build(place: Path, epoch: str) -> dict[str, bytes]:
    """Return name -> bytes of the archives built from the commit's files, below `place`."""
    files = subprocess.run(
        ["git", "archive", "HEAD"], cwd=REPOSITORY, stdout=subprocess.PIPE, check=True
    )
    with tarfile.open(fileobj=io.BytesIO(files.stdout)) as archive:
        archive.extractall(place / "source", filter="tar")
    env = os.environ | {"SOURCE_DATE_EPOCH": epoch}
    repository = os.environ.get("REPOSITORY_URL", "")
    readme = place / "source" / "README.md"
    readme.write_text(absolute(readme.read_text(), repository, version()))
    for folder in DISTRIBUTIONS:
        source = place / "source" / folder
        with (source / "pyproject.toml").open("a") as file:
            file.write(urls(repository))
        run(BIN / "python", "-m", "build", "--outdir", place / "dist", source, env=env)
    archives = {path.name: path.read_bytes() for path in sorted((place / "dist").iterdir())}
    return {
        name: repacked(content, int(epoch)) if name.endswith(".tar.gz") else content
        for name, content in archives.items()
    }


def repacked(content: bytes, epoch: int) -> bytes:
    """Return a source archive without what tells of the machine: clocks, owners, modes, order.

    setuptools writes the time of each file that it generates, and the account's name.
    """
    plain = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(content)) as old,
        tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old, key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    return gzip.compress(plain.getvalue(), mtime=epoch)


def compared(first: dict[str, bytes], second: dict[str, bytes]) -> None:
    """End the release if two builds of the same files differ in a byte."""
    different = [name for name in first | second if first.get(name) != second.get(name)]
    if different:
        sys.exit(f"not reproducible: two builds of this commit differ in {', '.join(different)}")


def tried(python: str, dist: Path, number: str, place: Path) -> Path:
    """Return the environment of `python` in which the wheels were installed and used."""
    environment, home, here = place / "environment", place / "home", place / "empty"
    home.mkdir()
    here.mkdir()
    env = {name: os.environ[name] for name in KEPT if name in os.environ}
    env |= {"HOME": str(home), "DO_NOT_TRACK": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}
    run(python, "-m", "venv", environment, env=env)
    links = ("--find-links", dist, f"cloze-pretraining=={number}")
    run(environment / "bin" / "pip", "install", "--quiet", *links, where=here, env=env)
    cloze = environment / "bin" / "cloze"
    run(cloze, "doctor", where=here, env=env)
    last = run(cloze, "run", "sample", where=here, env=env).strip().splitlines()
    served(cloze, here, env)
    print(f"{run(environment / 'bin' / 'python', '--version').strip()}: {last[-1]}", flush=True)
    return environment


def served(cloze: Path, where: Path, env: dict[str, str]) -> None:
    """Start `cloze ui`, and end the release unless all its servers come up with the deployments."""
    log, record = where / "ui.log", where / "runs" / ".servers" / "state.json"
    end = time.monotonic() + SERVERS_SECONDS
    with log.open("w") as file:
        process = subprocess.Popen(
            [str(cloze), "ui"], cwd=where, env=env, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        while process.poll() is None and time.monotonic() < end:
            if record.exists() and json.loads(record.read_text())["state"] == "up":
                return
            time.sleep(1)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
    sys.exit(f"{log.read_text()}\n`cloze ui` was not up after {SERVERS_SECONDS} s")


def main() -> None:
    """Build, compare, check, install, use, and write what goes with a release."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "pythons", nargs="*", default=[sys.executable], help="Pythons to try it with"
    )
    pythons = parser.parse_args().pythons
    if run("git", "status", "--porcelain"):
        sys.exit("the working tree has changes; a release is of a commit")
    number = version()
    said = notes(number)
    unfilled = missing(os.environ.get("REPOSITORY_URL", ""))
    if unfilled and run("git", "tag", "--points-at", "HEAD").strip():
        sys.exit(
            f"a commit with a tag is published: {'; '.join(unfilled)} (CONTRIBUTING.md, Release)"
        )
    epoch = run("git", "log", "-1", "--format=%ct").strip()
    with tempfile.TemporaryDirectory(prefix="cloze-release-") as scratch:
        first, second = (build(Path(scratch, name), epoch) for name in ("a", "b"))
        compared(first, second)
        (wheel,) = (
            name
            for name in first
            if name.startswith("cloze_pretraining_base") and name.endswith(".whl")
        )
        check_contents(first[wheel], run("git", "ls-files").splitlines())
        print(f"{wheel}\n{contents(first[wheel])}", flush=True)
        dist = REPOSITORY / "dist"
        shutil.rmtree(dist, ignore_errors=True)
        dist.mkdir()
        for name, content in first.items():
            (dist / name).write_bytes(content)
        run(BIN / "twine", "check", "--strict", *(dist / name for name in first))
        for index, python in enumerate(pythons):
            (place := Path(scratch, f"try{index}")).mkdir()
            environment = tried(python, dist, number, place)
        bill = ("--output-reproducible", "--of", "JSON", "-o", dist / f"cloze-{number}.cdx.json")
        run(BIN / "cyclonedx-py", "environment", *bill, environment)
    hashes = [f"{hashlib.sha256(content).hexdigest()}  {name}" for name, content in first.items()]
    (dist / "SHA256SUMS").write_text("\n".join(hashes) + "\n")
    (dist / "notes.md").write_text(said)
    print(f"dist: {', '.join(path.name for path in sorted(dist.iterdir()))}; built twice, equal")
    if unfilled:
        print(f"a trial, not to be published: {'; '.join(unfilled)}")


if __name__ == "__main__":
    main()
