"""The task made from held-out docstrings: no name, no repeat, no shared document, nothing that
pretraining read.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from cloze.core import random_keys
from cloze.core.artifacts.artifact import shard_name
from cloze.core.errors import DataError
from cloze.labs.docstrings.package import label_of, named_packages
from cloze.model.tasks.files import documents as documents_of
from cloze.model.tasks.table import load_task
from cloze.pipeline.corpus.files.intermediate import CORPUS

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]


def _sentence(package, module, number):
    return f"The {WORDS[number % 8]} of {package[:2]}q{module} holds for every case {number}."


def _corpus(directory, documents, shards=1):
    """Write (id, split, sentences) as a corpus of `shards` files."""
    directory.mkdir(exist_ok=True)
    rows = [
        {
            "key": random_keys.document_key(name),
            "id": name,
            "source": name.split("/")[0],
            "title": name,
            "split": split,
            "sentences": sentences,
            "paragraphs": [0],
        }
        for name, split, sentences in documents
    ]
    for number in range(shards):
        name = directory / shard_name("corpus", number, shards)
        with pa.ipc.new_file(str(name), CORPUS) as writer:
            writer.write_table(pa.Table.from_pylist(rows[number::shards], schema=CORPUS))
    return str(directory)


def _documents(packages=("numpy", "torch", "stdlib"), modules=10, each=12):
    return [
        (f"docstrings/{p}/{p}.m{m}", "heldout", [_sentence(p, m, n) for n in range(each)])
        for p in packages
        for m in range(modules)
    ]


def _both(path, limit=None):
    return {split: load_task("package").read(path, split, limit) for split in ("train", "dev")}


def test_labels_come_from_the_document_id():
    assert label_of("docstrings/numpy/numpy.linalg") == "numpy"
    assert label_of("docstrings/stdlib/json.decoder") == "stdlib"
    assert label_of("docstrings/apache_beam@0a1b2c3d/apache_beam.io") == "apache_beam"


@pytest.mark.parametrize(
    ("sentence", "named"),
    [
        ("Like NumPy it broadcasts.", True),
        ("See numpydoc for the format.", True),
        ("Calls np.dot on both.", True),
        ("A pd.DataFrame is returned.", True),
        ("Runs an Apache Beam pipeline.", True),
        ("Runs a beam search.", True),
        ("Uses scikit-learn inside.", True),
        ("TorchScript compiles it.", True),
        ("The input is a dense matrix.", False),
        ("Takes npoints samples of the interval.", False),
        ("The pdf of the distribution.", False),
        ("An update of the index.", False),
        ("Returns a tensor of rank two.", False),
        ("Any rich comparison is done here.", True),
        ("An enrichment of the comparison.", False),
    ],
)
def test_sentences_that_name_a_package_are_found(sentence, named):
    pattern = named_packages(
        ["numpy", "pandas", "apache_beam", "sklearn", "torch", "stdlib", "rich.table"]
    )
    assert bool(pattern.search(sentence)) is named


def test_splits_share_no_document_and_every_package_is_in_both(tmp_path):
    both = _both(_corpus(tmp_path / "c", _documents()))
    modules = {
        split: {text.split()[3] for text in examples.texts} for split, examples in both.items()
    }
    assert not modules["train"] & modules["dev"]
    for examples in both.values():
        assert examples.label_names == ("numpy", "stdlib", "torch")
        assert all(examples.class_counts().values())
    share = len(both["train"]) / (len(both["train"]) + len(both["dev"]))
    assert 0.7 <= share <= 0.9


def test_shards_and_order_of_the_corpus_change_nothing(tmp_path):
    documents = _documents()
    one, four = (
        _corpus(tmp_path / "one", documents),
        _corpus(tmp_path / "four", documents[::-1], shards=4),
    )
    for split, examples in _both(one).items():
        other = load_task("package").read(four, split, None)
        assert list(examples.texts) == list(other.texts)
        assert list(examples.labels) == list(other.labels)


def test_what_is_dropped_is_counted_by_reason(tmp_path):
    shared, repeated, seen = (
        f"This {word} sentence has quite enough words in it."
        for word in ("shared", "repeated", "seen")
    )
    documents = _documents(("numpy", "torch"), modules=4)
    documents[0][2].extend(
        ["Too short.", "word " * 61, "A numpy array comes back from this call.", shared, repeated]
    )
    documents[1][2].extend([repeated.upper(), seen])
    documents[4][2].extend([shared])
    documents.append(("docstrings/torch/torch.read", "train", [seen]))
    documents.append(
        (
            "wikipedia/dump/1",
            "heldout",
            ["This is a sentence of an encyclopedia, not of a docstring."],
        )
    )
    both = _both(_corpus(tmp_path / "c", documents))
    texts = [text for examples in both.values() for text in examples.texts]
    dropped = {}
    for examples in both.values():
        for reason, count in examples.dropped.items():
            dropped[reason] = dropped.get(reason, 0) + count
    assert dropped == {
        "length": 2,
        "names_a_package": 1,
        "two_labels": 2,
        "duplicate": 1,
        "seen_in_pretraining": 1,
    }
    assert repeated in texts
    assert len({text.lower() for text in texts}) == len(texts) == 8 * 12 + 1


def test_limit_balances_both_splits(tmp_path):
    documents = _documents(("numpy", "torch"), modules=10) + _documents(("stdlib",), modules=4)
    both = _both(_corpus(tmp_path / "c", documents), limit=20)
    assert set(both["train"].class_counts().values()) == {20}
    assert set(both["dev"].class_counts().values()) == {5}
    assert both["train"].dropped["over_limit_per_class"] > 0


def test_a_package_with_one_document_can_be_in_neither_split(tmp_path):
    documents = [
        *_documents(("numpy", "torch"), modules=3),
        ("docstrings/mlflow/mlflow", "heldout", [_sentence("mlflow", 1, 1)]),
    ]
    both = _both(_corpus(tmp_path / "c", documents))
    assert both["train"].label_names == both["dev"].label_names == ("numpy", "torch")
    assert both["dev"].dropped == {"package_with_one_document": 1}


def test_corpora_that_cannot_give_the_task_are_refused(tmp_path):
    with pytest.raises(DataError, match="contains no corpus"):
        load_task("package").read(str(tmp_path), "train", None)
    train_only = [(name, "train", sentences) for name, _, sentences in _documents()]
    with pytest.raises(DataError, match="no held-out documents of source docstrings"):
        load_task("package").read(_corpus(tmp_path / "a", train_only), "train", None)
    with pytest.raises(DataError, match=r"sentences of 1 packages.*name more packages"):
        load_task("package").read(_corpus(tmp_path / "b", _documents(("numpy",))), "train", None)
    with pytest.raises(DataError, match="no split 'test'"):
        load_task("package").read(_corpus(tmp_path / "c", _documents()), "test", None)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / shard_name("corpus", 0, 1)).write_bytes(b"not arrow")
    with pytest.raises(DataError, match="is no Arrow file"):
        load_task("package").read(str(tmp_path / "d"), "train", None)


def test_another_corpus_at_the_same_path_is_read_again(tmp_path):
    first = _both(_corpus(tmp_path / "corpus", _documents()))
    second = _both(_corpus(tmp_path / "corpus", _documents(packages=("jax", "scipy"))))
    assert first["train"].label_names == ("numpy", "stdlib", "torch")
    assert second["train"].label_names == second["dev"].label_names == ("jax", "scipy")


@pytest.mark.parametrize("source", [None, "docstrings", "books"])
@pytest.mark.parametrize("split", [None, "train", "heldout"])
def test_documents_of_a_source_and_a_split_are_chosen_where_they_are_read(tmp_path, source, split):
    kept = [(f"{s}/{n}", p, ["A b."]) for s in ("docstrings", "books") for n in range(3)
            for p in (("train", "heldout")[n % 2],)]  # fmt: skip
    path = _corpus(tmp_path / "c", kept, shards=2)
    expected = {
        name for name, own, _ in kept
        if source in (None, name.split("/")[0]) and split in (None, own)
    }  # fmt: skip
    assert {name for (name,) in documents_of(path, ("id",), source, split)} == expected
    assert {name for (name,) in documents_of(path, ("id",), source=source, split=split)} == expected
