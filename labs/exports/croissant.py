"""Export of a corpus or dataset artifact: its files, Croissant metadata, and a card.

`croissant.json` describes the files and the fields of their rows in MLCommons' vocabulary
(docs.mlcommons.org/croissant), as dataset hubs and search engines read it. Files are linked, so an
export takes no space on the same disk.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import yaml

from cloze.core import storage
from cloze.core.artifacts import artifact, fingerprints
from cloze.core.artifacts.artifact import Manifest
from cloze.core.artifacts.lineage import finished_ancestors
from cloze.core.errors import UsageError
from cloze.core.plugins import with_substitutes
from cloze.core.stages.stage import BuildContext, StageResult
from cloze.model.hub.card import corpus_cards, languages_of, licence_of, text_sections
from cloze.model.hub.config import ExportForm

METADATA = "croissant.json"
ARROW = "application/vnd.apache.arrow.file"
MEDIA_TYPES = {".arrow": ARROW, ".json": "application/json", ".html": "text/html"}
CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "rai": "http://mlcommons.org/croissant/RAI/",
    **{
        name: f"cr:{name}"
        for name in "citeAs column equivalentProperty extract field fileObject fileProperty fileSet"
        " format includes isLiveDataset jsonPath key md5 parentField path recordSet references"
        " regex repeated replace samplingRate separator source subField transform".split()
    },
}


def export_data(build: BuildContext) -> StageResult:
    """Export the input artifact to `build.path`.

    Returns:
        summary: `directory`; `files`, `bytes`.

    Raises:
        UsageError: the input is no artifact of a corpus or dataset.
    """
    source = build.inputs["checkpoint"]
    manifest = artifact.find_manifest(source)
    kinds = with_substitutes(("corpus", "dataset"))
    if manifest is None or manifest.stage not in kinds:
        raise UsageError(
            f"--as croissant is for artifacts of {', '.join(kinds)} ({source} is none); name one, "
            f"or choose another form"
        )
    for entry in manifest.files:
        fingerprints.link_unchanged(source, entry, build.file(entry.path))
    lineage = finished_ancestors(source)
    name = re.sub(r"[^\w-]+", "-", source.rstrip("/").rpartition("/")[2])
    content = metadata(source, manifest, lineage, name)
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    storage.write_bytes(build.file(METADATA), text.encode())
    storage.write_bytes(build.file("README.md"), _card(lineage, name).encode())
    summary = {"directory": build.path, "files": len(manifest.files), "bytes": manifest.size}
    return StageResult(rows=manifest.rows, tokens=manifest.tokens, summary=summary)


def metadata(
    source: str, manifest: Manifest, lineage: Mapping[str, Manifest], name: str
) -> dict[str, Any]:
    """Return the Croissant 1.0 description of an artifact.

    Args:
        source: directory of the artifact.
        lineage: its manifest and those of its ancestors, by directory.
        name: name of the dataset.
    """
    cards = corpus_cards(lineage)
    licence = " OR ".join(sorted({entry["licence"] for c in cards for entry in c["licences"]}))
    shards: dict[str, str] = {}  # record set -> its first shard
    for entry in manifest.files:
        match = re.fullmatch(r"([\w-]+)-\d{5}-of-\d{5}\.arrow", entry.path)
        if match:
            shards.setdefault(match[1], entry.path)
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": name,
        "description": f"Artifact {manifest.fingerprint} of the stage {manifest.stage} of Cloze: "
        f"{manifest.rows:,} rows.",
        "license": licence or "unknown",
        "inLanguage": languages_of(cards),
        "datePublished": manifest.created[:10],
        "version": f"{manifest.version}.0.0",
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": entry.path,
                "name": entry.path,
                "contentUrl": entry.path,
                "contentSize": f"{entry.size} B",
                "encodingFormat": MEDIA_TYPES.get(
                    entry.path[entry.path.rfind(".") :], "text/plain"
                ),
                "sha256": entry.sha256,
            }
            for entry in manifest.files
        ]
        + [
            {
                "@type": "cr:FileSet",
                "@id": f"{split}-shards",
                "name": f"{split}-shards",
                "encodingFormat": ARROW,
                "includes": f"{split}-*.arrow",
            }
            for split in shards
        ],
        "recordSet": [
            {
                "@type": "cr:RecordSet",
                "@id": split,
                "name": split,
                "field": list(_fields(split, storage.join(source, shard))),
            }
            for split, shard in shards.items()
        ],
    }


def _fields(split: str, shard: str) -> Iterator[dict[str, Any]]:
    """Yield the fields of a record set, from the schema of its first shard."""
    with storage.open_input(shard) as handle, pa.ipc.open_file(pa.PythonFile(handle)) as reader:
        schema = reader.schema
    for column in schema:
        source = {"fileSet": {"@id": f"{split}-shards"}, "extract": {"column": column.name}}
        yield _field(f"{split}/{column.name}", column.type, source)


def _field(identifier: str, kind: pa.DataType, source: Mapping[str, Any]) -> dict[str, Any]:
    name = identifier.rpartition("/")[2]
    field: dict[str, Any] = {"@type": "cr:Field", "@id": identifier, "name": name}
    while pa.types.is_list(kind) or pa.types.is_large_list(kind):
        field["repeated"] = True
        kind = kind.value_type
    if pa.types.is_struct(kind):
        parts = (kind.field(number) for number in range(kind.num_fields))
        field["subField"] = [_field(f"{identifier}/{p.name}", p.type, source) for p in parts]
        return {**field, "source": dict(source)}
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    is_integer = pa.types.is_integer(kind)
    data_type = "sc:Integer" if is_integer else "sc:Float" if pa.types.is_floating(kind) else ""
    return {**field, "dataType": data_type or "sc:Text", "source": dict(source)}


def _card(lineage: Mapping[str, Manifest], name: str) -> str:
    """Return the card of a data set: Markdown with the Hub's YAML header."""
    cards = corpus_cards(lineage)
    languages = languages_of(cards)
    header = {
        **licence_of(cards),
        **({"language": languages} if languages else {}),
        "tags": ["croissant", "cloze"],
    }
    sections = [
        f"---\n{yaml.safe_dump(header, sort_keys=False)}---",
        f"# {name}",
        "Made with Cloze. `croissant.json` describes its files and fields.",
        *text_sections(lineage, cards),
    ]
    return "\n\n".join(sections) + "\n"


FORM = ExportForm(export=export_data)
