"""Commands `import` and `export`: models from and to Hugging Face, or a Hub (`HF_ENDPOINT`).

huggingface_hub transfers the files, and finds the user's token.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from cloze.core.errors import ClozeError, UsageError
from cloze.flows.commands.base.options import GroupedOption, OptionOverride, emit
from cloze.flows.commands.base.stage_command import StageArguments, StageCommand, run_stage

REPOSITORY = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")  # org/name@revision
# What an import reads; other files of a repository can be many times larger.
READ = ["*.json", "*.txt", "*.model", "*.safetensors"]
HUB = "Hub"  # heading of options
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


@click.command(
    cls=StageCommand,
    stage="export",
    positional=("checkpoint",),
    checks_required=False,
    spelled={"export_as": OptionOverride("--as")},
)
@click.option(
    "--push",
    "repository",
    cls=GroupedOption,
    group=HUB,
    metavar="ORG/NAME",
    help="Repository of a Hub to upload the export to; revisions become branches. Without --out,"
    " CHECKPOINT is an export that is there.",
)
@click.option(
    "--private",
    cls=GroupedOption,
    group=HUB,
    is_flag=True,
    help="With --push: create the repository as a private one.",
)
def export(arguments: StageArguments, repository: str | None, private: bool) -> None:
    """Convert a checkpoint into a Hugging Face model, and check that its outputs stay equal.

    To upload it to a Hub (--push), log in with `hf auth login`, or set HF_TOKEN; HF_ENDPOINT names
    another Hub.
    """
    if repository is not None and (REPOSITORY.fullmatch(repository) is None or "@" in repository):
        raise UsageError(f"--push ({repository}) has another form; write it as org/name")
    if private and repository is None:
        raise click.UsageError("--private is for --push; give --push ORG/NAME too")
    if arguments.out is None and repository is None:
        raise click.UsageError("Missing option '--out'.")
    if repository is None:
        return run_stage(arguments)

    def upload(directory: str) -> dict[str, Any]:
        uploaded = push(directory, repository, private=private)
        if not arguments.as_json:
            for branch, commit in uploaded["commits"].items():
                click.echo(f"{repository}@{branch}: {commit}")
        return uploaded

    if arguments.out is not None:
        return run_stage(arguments, lambda made: upload(made.artifact))
    if arguments.config or arguments.overrides or arguments.force:
        raise click.UsageError("--push without --out uploads an export as it is; give --out too")
    uploaded = upload(arguments.inputs["checkpoint"])
    return emit(uploaded) if arguments.as_json else None


def push(directory: str, repository: str, *, private: bool) -> dict[str, Any]:
    """Upload an export, its revisions as branches, and return the commits.

    Raises:
        UsageError: the directory is no export.
        ClozeError: the Hub refused or did not answer.
    """
    root = Path(directory)
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
    return {"repository": repository, "type": kind, "commits": commits}


def _transfer(transfer: Any) -> Any:
    """Return `transfer(huggingface_hub)`.

    Raises:
        ModuleNotFoundError: huggingface_hub is not installed.
        ClozeError: the Hub refused or did not answer.
    """
    import huggingface_hub as hub

    try:
        return transfer(hub)
    except (hub.errors.HfHubHTTPError, hub.errors.LocalEntryNotFoundError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ClozeError(
            f"the Hub refused or did not answer ({reason}); try again later"
        ) from error
