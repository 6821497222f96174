"""What the presets' tests ask of a graph, and what a user must give to which preset."""

from __future__ import annotations

from typing import Any, Protocol

from cloze.flows.graph import config as configs
from cloze.flows.graph.config import RunConfig
from cloze.flows.graph.nodes import Node

BOOKS = str(configs.samples_directory() / "books")
SOURCES = f"corpus.sources=[{{kind: books, path: {BOOKS}}}]"
WITHOUT_TEXT = {  # presets whose text the user brings
    "adapt", "albert-base", "babylm-strict-small", "bert-base", "bert-large-two-phase", "deberta-v3-base",
    "distillation",
    "domain-adaptation",
    "electra-base", "electra-small",
    "modernbert-base", "roberta-base", "roberta-large", "spanbert-large", "speedrun",
}  # fmt: skip
OF_A_CHECKPOINT = {
    "cross-test",
    "glue",
    "grid",
    "multitask",
    "pruning",
    "transfer",
}  # presets that begin with a checkpoint and a directory of tasks


class Load(Protocol):
    """The fixture `load`."""

    def __call__(self, name: str, *settings: str) -> RunConfig: ...


def inputs(node: Node) -> dict[str, str]:
    return {
        role: f"{origin.node or ''}/{origin.path}".strip("/")
        for role, origin in node.inputs.items()
    }


def values(node: Node, *names: str) -> list[Any]:
    return [getattr(node.config, name) for name in names]


def rows(nodes: dict[str, Node], stage: str) -> dict[str, Node]:
    """The nodes of a stage by their labels."""
    return {name.partition("@")[2]: node for name, node in nodes.items() if node.stage == stage}
