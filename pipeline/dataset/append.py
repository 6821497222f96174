"""Stage "dataset": a finished dataset that new shards are appended to, its files taken over as they are.

The new artifact links the old one's files (copies them where links are impossible), so it costs the disk only what is new, and
old shards keep their bytes and hashes. It stands by itself: the old artifact may be removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.core import artifact, fingerprints, storage
from pipeline.core.artifact import Manifest
from pipeline.core.errors import DataError, UsageError
from pipeline.core.shards import TRAIN
from pipeline.dataset import schema
from pipeline.dataset.document_keys import DOCUMENTS

ADDED = ("rows", "heldout_rows", "tokens", "row_tokens", "shards", "documents", "masked")  # figures that add up


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The dataset that is appended to.

    Attributes:
        path: its directory.
        manifest: what it says of itself.
        generation: how often something will have been appended, from 1.
    """

    path: str
    manifest: Manifest
    generation: int

    @classmethod
    def open(cls, path: str, version: int) -> Base:
        """Args: version: of the dataset stage.

        Raises:
            DataError: no finished dataset, or a shard is damaged.
            UsageError: another version of the stage made it.
        """
        manifest = artifact.read_manifest(path)
        if manifest.stage != "dataset":
            raise UsageError(
                f"{path} holds a {manifest.stage} artifact, not a dataset; --append takes one that `cloze dataset` made"
            )
        if manifest.version != version:
            raise UsageError(
                f"{path} was made by version {manifest.version} of the dataset stage, this program has version {version}, whose"
                " rows differ; make it again, then append"
            )
        generations = [0, *(_generation(entry.path) for entry in manifest.files)]
        return cls(path=path, manifest=manifest, generation=max(generations) + 1)

    @property
    def documents(self) -> tuple[str, ...]:
        """Its files of document keys."""
        names = (
            entry.path for entry in self.manifest.files if entry.path.startswith(DOCUMENTS) and entry.path.endswith(".arrow")
        )
        return tuple(storage.join(self.path, name) for name in sorted(names))

    @property
    def rows_a_shard(self) -> float:
        summary = self.manifest.summary
        return max(1.0, float(summary["rows"] / summary["shards"]))

    def check(self, info: schema.DatasetInfo) -> None:
        """Raises `DataError` where the dataset's shards were made with settings that its manifest does not have."""
        from pipeline.core.arrow import open_arrow

        for entry in self.manifest.files:
            if entry.path.startswith(f"{TRAIN}-"):
                file = storage.join(self.path, entry.path)
                if schema.DatasetInfo.from_schema(open_arrow(file).schema, file) != info:
                    raise DataError(f"{file} was made with other settings than {self.path} has; make the dataset again")
                return

    def take_over(self, target: str) -> None:
        """Link its files into the directory `target`.

        Raises:
            DataError: one of them does not have the hash that the manifest says.
        """
        for entry in self.manifest.files:
            source = storage.join(self.path, entry.path)
            if int(storage.stat(source)["size"]) != entry.size or (
                storage.is_local(source) and fingerprints.file_hashes([source])[source] != entry.sha256
            ):
                raise DataError(f"{source} does not have the sha256 that the manifest says; make {self.path} again")
            artifact.link_file(source, storage.join(target, entry.path))


def prefix(split: str, generation: int) -> str:
    """What opens the names of a split's shards: `train`, and `train-a001` for those appended first. They sort in this order."""
    return f"{split}-a{generation:03d}" if generation else split


def _generation(name: str) -> int:
    parts = name.split("-")
    found = parts[1].removesuffix(".arrow") if len(parts) > 1 else ""
    return int(found[1:]) if found[:1] == "a" and found[1:].isdigit() else 0


def added(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The summary's figures that add up, over the old shards and the new."""
    total = {name: old[name] + new[name] for name in ADDED}
    total["pair_labels"] = {name: old["pair_labels"][name] + count for name, count in new["pair_labels"].items()}
    total["length_histogram"] = [a + b for a, b in zip(old["length_histogram"], new["length_histogram"], strict=True)]
    return total
