"""Commands `import` and `push`: models from and to a Hub of Hugging Face (`HF_ENDPOINT`).

huggingface_hub transfers the files, and finds the user's token.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from cloze.core.errors import UsageError
from cloze.flows.commands.base.options import emit, json_option
from cloze.flows.commands.base.stage_command import StageArguments, StageCommand, run_stage

REPOSITORY = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")  # org/name@revision
# What an import reads; other files of a repository can be many times larger.
READ = ["*.json", "*.txt", "*.model", "*.safetensors"]
REVISIONS, METADATA = "revisions", "croissant.json"  # see cloze.model.hub
LOCAL = ["manifest.json", "manifest.arrow", "_*", "_*/*", f"{REVISIONS}/*"]  # not part of a model


@click.command("import", cls=StageCommand, stage="import", positional=("directory",))
def import_model(arguments: StageArguments) -> None:
    """Convert a Hugging Face model into a checkpoint.

    DIRECTORY is the model's directory, or a repository of a Hub such as org/name@revision. The
    manifest records the commit of a repository, and the hash of the files.
    """
    source = arguments.inputs["directory"]
    match = None if Path(source).exists() else REPOSITORY.fullmatch(source)
    if match is None and "/" not in source and not Path(source).exists():
        raise UsageError(
            f"{source} does not exist; a repository of a Hub is ORG/NAME, such as "
            f"google-bert/bert-base-uncased"
        )
    if match is not None:
        with_pickles = [*READ, "*.bin"] if arguments.config.get("trust_pickle") else READ
        path = _transfer(
            lambda hub: hub.snapshot_download(
                match[1], revision=match[2], allow_patterns=with_pickles
            )
        )
        arguments.inputs["directory"] = str(path)
        arguments.config["repository"] = (
            f"{match[1]}@{Path(path).name}"  # a snapshot's name is its commit
        )
    run_stage(arguments)


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@click.argument("repository")
@click.option("--private", is_flag=True, help="Create the repository as a private one.")
@json_option
def push(directory: str, repository: str, private: bool, as_json: bool) -> None:
    """Upload an export to a Hub; its revisions become branches.

    DIRECTORY is what `cloze export` wrote, REPOSITORY org/name. Log in with `hf auth login`, or set
    HF_TOKEN; HF_ENDPOINT names another Hub.
    """

    root = Path(directory)
    if REPOSITORY.fullmatch(repository) is None or "@" in repository:
        raise UsageError(f"repository ({repository}) has another form; write it as org/name")
    if not ((root / "config.json").exists() or (root / METADATA).exists()):
        raise UsageError(f"{directory} has no config.json or {METADATA}; name an export")
    kind = "dataset" if (root / METADATA).exists() else "model"
    branches = sorted(path.name for path in root.glob(f"{REVISIONS}/*") if path.is_dir())

    def upload(hub: ModuleType) -> dict[str, str]:
        api, commits = hub.HfApi(), {}
        api.create_repo(repository, repo_type=kind, private=private, exist_ok=True)
        for branch in ("main", *branches):
            if branch != "main":
                api.create_branch(repository, branch=branch, repo_type=kind, exist_ok=True)
            commit = api.upload_folder(
                repo_id=repository,
                folder_path=root if branch == "main" else root / REVISIONS / branch,
                repo_type=kind,
                revision=branch,
                ignore_patterns=LOCAL,
                commit_message="Export of Cloze",
            )
            commits[branch] = commit.oid
        return commits

    commits = _transfer(upload)
    if as_json:
        emit({"repository": repository, "type": kind, "commits": commits})
    else:
        for branch, commit in commits.items():
            click.echo(f"{repository}@{branch}: {commit}")


def _transfer(transfer: Any) -> Any:
    """Return `transfer(huggingface_hub)`.

    Raises:
        ModuleNotFoundError: huggingface_hub is not installed.
        ClozeError: the Hub refused or did not answer.
    """
    import huggingface_hub as hub

    from cloze.core.errors import ClozeError

    try:
        return transfer(hub)
    except (hub.errors.HfHubHTTPError, hub.errors.LocalEntryNotFoundError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ClozeError(
            f"the Hub refused or did not answer ({reason}); try again later"
        ) from error
