"""Model cards: the code that they show runs on the exported directory, and the Hub's tags are
right.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from cloze.core import storage
from cloze.core.artifacts.artifact import Manifest, write_manifest
from cloze.model import checkpoint
from cloze.model.families.hub_formats import exportable
from cloze.model.hub.write import in_form, write_directory
from cloze.model.tasks.files import data_licence
from cloze.model.tasks.table import task_options
from tests.labs.test_embed import write_tuned
from tests.parity.pretrained import write_pretrained
from tests.slices import few
from tests.tiny_models import write_classifier

transformers = pytest.importorskip("transformers", reason="the cards' code needs transformers")

ENCODERS = {"electra": "feature-extraction", "xlnet": "feature-extraction"}
GENERATORS = {
    **dict.fromkeys(("gpt2", "ltr"), "text-generation"),
    **dict.fromkeys(("t5", "bart", "transformer"), "text2text-generation"),
}


def front_matter(card: str) -> dict[str, Any]:
    header: dict[str, Any] = yaml.safe_load(card.split("---")[1])
    return header


def run_code(card: str, directory: Path) -> dict[str, Any]:
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code.replace("path/to/this/directory", str(directory)), names)
    return names


@pytest.mark.parametrize(
    ("family", "kind"),
    few(
        [
            pytest.param(family, kind, id=f"{family}-{kind}")
            for family in exportable()
            for kind in ("wordpiece", "byte_level")
        ],
        "roberta-byte_level",
        *(f"{family}-wordpiece" for family in exportable()),
    ),
)
def test_pretrained(family: str, kind: str, tmp_path: Path) -> None:
    path = write_pretrained(tmp_path / "checkpoint", family, kind, max_position_embeddings=64)
    hub = tmp_path / "hub"
    written = write_directory(checkpoint.load(path), str(hub))
    card = (hub / "README.md").read_text()
    expected = (ENCODERS | GENERATORS).get(family, "fill-mask")
    assert front_matter(card)["pipeline_tag"] == expected
    if expected == "fill-mask":  # SPLADE and the like look for this class by its name
        assert written["architectures"][0].endswith("ForMaskedLM")
        mask = transformers.AutoTokenizer.from_pretrained(str(hub)).mask_token
        assert front_matter(card)["mask_token"] == mask
    if family == "gpt2":
        return  # forty new tokens do not fit into the tiny model
    run_code(card, hub)


def test_vectors(tmp_path: Path) -> None:
    path, hub = write_tuned(tmp_path, pooling="mean", normalize=True), tmp_path / "hub"
    write_directory(checkpoint.load(path), str(hub))
    card = (hub / "README.md").read_text()
    told = front_matter(card)
    assert told["pipeline_tag"] == "sentence-similarity"
    assert told["library_name"] == "sentence-transformers"
    pytest.importorskip("sentence_transformers")
    run_code(card, hub)


def manifest(path: Path, stage: str, fingerprint: str, **values: Any) -> str:
    """An artifact of one file, as far as a card reads it."""
    path.mkdir(parents=True, exist_ok=True)
    made = Manifest(
        stage=stage,
        version=1,
        fingerprint=fingerprint,
        **{"parents": {}, "config": {}, "files": (), **values},
    )
    write_manifest(str(path), made)
    return str(path)


def write_lineage(
    runs: Path, licences: tuple[str, ...], tasks: tuple[str, ...] | None = ("CC-BY-SA-4.0",)
) -> str:
    """A corpus, a dataset, a pretraining, and two fine-tunings of other seeds; return the first."""
    corpus = Path(manifest(runs / "corpus", "corpus", "c" * 64))
    counts = {"documents": 3, "words": 1000, "bytes": 6000}
    card = {
        "totals": {"documents": 3 * len(licences)},
        "languages": {"shares": {"en": 0.995, "de": 0.005}},
        "licences": [{"licence": name, **counts} for name in licences],
        "origins": [
            {"kind": "books", "name": f"shelf | {name}", "url": "https://example.org", "date": ""}
            | {"licence": "" if name == "unknown" else name, **counts}
            for name in licences
        ],
    }
    (corpus / "card.json").write_text(json.dumps(card))
    parents = {"corpus": "c" * 64}
    manifest(runs / "dataset", "dataset", "d" * 64, parents=parents, rows=7, tokens=5000)
    trained: dict[str, Any] = {"config": {"seed": 1, "schedule": "linear", "tokens": None}}
    trained["summary"] = {"tokens": 123456, "words_seen": 98765.0, "cpu_hours": 0.5}
    manifest(runs / "pretrain", "pretrain", "e" * 64, parents={"dataset": "d" * 64}, **trained)
    for seed, accuracy in enumerate((0.75, 0.5), 1):
        tuned = runs / f"finetune@{seed}"
        write_classifier(tuned / "checkpoint", runs / "scratch")
        metrics = {"accuracy": accuracy, "confusion": [[1, 2]]}
        manifest(
            tuned,
            "finetune",
            f"{seed}" * 64,
            parents={"checkpoint": f"{'e' * 64}/checkpoints/step-00000005", "data": "9" * 64},
            config={"seed": seed, "epochs": 2},
            summary={"task": "sst2", "metrics": metrics, "checkpoint": "checkpoint"}
            | ({} if tasks is None else {"data_licences": tasks}),
        )
    return str(runs / "finetune@1" / "checkpoint")


def test_the_numbers_of_a_later_phase_are_its_own(tmp_path: Path) -> None:
    """The summary counts steps and tokens over all phases, and costs of each."""
    summary = {"begun_at": 60, "steps": 90, "tokens": 150, "words_seen": 30.0, "checkpoint": "last"}
    write_classifier(tmp_path / "pretrain" / "last", tmp_path / "scratch")
    manifest(tmp_path / "pretrain", "pretrain", "e" * 64, summary=summary, tokens=50)
    loaded = checkpoint.load(str(tmp_path / "pretrain" / "last"))
    write_directory(loaded, str(tmp_path / "hub"))
    card = (tmp_path / "hub" / "README.md").read_text()
    for row in ("| Steps | 30 |", "| Tokens, without padding | 50 |", "| Words seen | 30 |"):
        assert row in card


@pytest.mark.parametrize(
    ("licences", "tasks", "expected"),
    [
        (("CC-BY-SA-4.0",), ("CC-BY-SA-4.0",), "cc-by-sa-4.0"),
        (("CC-BY-SA-4.0",), (), "cc-by-sa-4.0"),  # its examples are of the corpus
        (("CC-BY-SA-4.0",), ("CC-BY-SA-4.0", "unknown"), None),
        (("CC-BY-SA-4.0",), None, None),  # made before licences were recorded
        (("CC-BY-SA-4.0",), ("CC-BY-NC-4.0",), "other"),
        (("CC-BY-SA-4.0", "MIT"), ("MIT",), "other"),
        (("MIT", "unknown"), ("MIT",), None),
    ],
)
def test_text_training_and_scores(
    licences: tuple[str, ...], tasks: tuple[str, ...] | None, expected: str | None, tmp_path: Path
) -> None:
    path, hub = write_lineage(tmp_path / "runs", licences, tasks), tmp_path / "hub"
    write_directory(checkpoint.load(path), str(hub))
    card = (hub / "README.md").read_text()
    header = front_matter(card)
    assert header.get("license") == expected
    assert header["language"] == ["en"]
    assert "| shelf \\| MIT |" in card or "MIT" not in licences
    assert "| Words seen | 98,765 |" in card
    assert "dataset `dddddddddddd`" in card
    assert ("licence of 3 of 6 documents is unknown" in card) == ("unknown" in licences)
    assert (f"| Licence of its data | {', '.join(tasks or ())} |" in card) == bool(tasks)
    assert ("tasks' data is unknown" in card) == (tasks is None or "unknown" in tasks)
    hub_cards = pytest.importorskip("huggingface_hub")
    scores = hub_cards.ModelCard(card).data.eval_results  # checks the form of model-index
    assert [(score.dataset_name, score.metric_name, score.metric_value) for score in scores] == [
        ("sst2", "accuracy, seed 1", 0.75),
        ("sst2", "accuracy, seed 2", 0.5),
    ]


def test_the_card_of_a_training_in_a_store_is_the_same(tmp_path: Path) -> None:
    path, store = write_lineage(tmp_path / "runs", ("MIT",)), "memory://scores"
    for name in storage.list_files(str(tmp_path)):
        storage.write_bytes(storage.join(store, name), (tmp_path / name).read_bytes())
    for loaded, hub in ((path, "disk"), (store + path.removeprefix(str(tmp_path)), "store")):
        write_directory(checkpoint.load(loaded), str(tmp_path / hub))
    cards = [(tmp_path / hub / "README.md").read_text() for hub in ("disk", "store")]
    assert "seed 2" in cards[0]
    assert cards[1] == cards[0]


def test_the_kind_decides_library_and_tag(tmp_path: Path) -> None:
    path = write_classifier(tmp_path / "c", tmp_path / "scratch")
    for export_as, library, tag in (
        (None, "transformers", "text-classification"),
        ("encoder", "transformers", "feature-extraction"),
        ("sentence-transformers", "sentence-transformers", "sentence-similarity"),
    ):
        hub = tmp_path / str(export_as)
        write_directory(in_form(checkpoint.load(path), export_as), str(hub), export_as)
        header = front_matter((hub / "README.md").read_text())
        assert (header["library_name"], header["pipeline_tag"]) == (library, tag)


@pytest.mark.parametrize(
    ("file", "text", "data", "licence"),
    [
        ("glue/fetched.json", '{\n "licence": "of each, see x.org"\n}', "", "of each, see x.org"),
        ("glue/fetched.json", '{\n "licence": "CC-BY-4.0"\n}', "glue/MRPC", "CC-BY-4.0"),
        ("glue/fetched.json", '{\n "licence": "MIT"\n}', "glue/MRPC/train.tsv", "MIT"),
        ("glue/MRPC/README.md", "---\nlanguage: en\nlicense: apache-2.0\n---\nText.\n", "", "apache-2.0"),
        ("glue/MRPC/README.md", "---\nlicense:\n- mit\n- odbl\nsize: 1\n---\n", "", "mit OR odbl"),
        ("glue/MRPC/README.md", '---\nlicense: "mit"\n---\n', "glue", "mit"),
        ("glue/MRPC/README.md", "# Mine\n\nlicense: see below\n", "", "unknown"),
        ("glue/MRPC/README.md", "---\nlanguage: en\n---\nlicense: mit\n", "", "unknown"),
        ("glue/MRPC/fetched.json", "no JSON", "", "unknown"),
        ("glue/MRPC/train.txt", "", "", "unknown"),
    ],
)  # fmt: skip
def test_the_licence_beside_a_tasks_files(
    file: str, text: str, data: str, licence: str, tmp_path: Path
) -> None:
    (tmp_path / "glue" / "MRPC").mkdir(parents=True)
    (tmp_path / "glue" / "MRPC" / "train.tsv").write_text("label\ttext\n")
    (tmp_path / file).write_text(text)
    found = data_licence(str(tmp_path / data), task_options("mrpc", {}))
    assert found == licence
