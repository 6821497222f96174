"""Names that a shell completes: every node of the config, and every section."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from cloze.flows.commands import run
from cloze.flows.graph.config import samples_directory


def test_nodes_and_sections_of_the_config_on_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "a.yaml"
    config.write_text(
        "corpus: {sources: [{kind: books, path: "
        f"{samples_directory() / 'books'}"
        "}]}\nvocab: {}\ndataset: {}\npretrain: {matrix: {seed: [1, 2]}}\n"
    )
    context = click.Context(click.Command("run"))
    context.params = {"config": str(config), "overrides": None}
    assert run._node_names(context) == [
        "corpus", "dataset", "pretrain", "pretrain@1", "pretrain@2", "vocab"
    ]  # fmt: skip
