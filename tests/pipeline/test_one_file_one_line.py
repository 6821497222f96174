"""A masking rule, a pairing and a kind of vocabulary, each with an option of its own: one new file
and one line each; a recipe is a line.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

from tests import warm
from tests.checkout import copy_packages, import_path
from tests.pipeline.corpus.corpora import made_documents, write_corpus

REPOSITORY = Path(__file__).resolve().parents[2]

# File -> its content: what somebody writes who adds something.
FILES = {
    "dataset/masking/every.py": '''
from pydantic import Field

from cloze.core.options import Options


class EveryOptions(Options):
    every: int = Field(default=2, ge=1)
    """Of the rule `every`: how far masks lie apart."""


def choose_every(candidates, budget, keys):
    import numpy as np

    from cloze.pipeline.dataset.masking.candidates import MaskSelection

    counts = np.repeat(-(-candidates.counts // candidates.config.every), keys.shape[1])
    starts = np.repeat(candidates.offsets[:-1], keys.shape[1])
    chosen = [np.arange(count) * candidates.config.every + start for start, count in zip(starts, counts)]
    return MaskSelection(index=np.concatenate([np.zeros(0, np.int64), *chosen]), counts=counts)
''',
    "dataset/pairings/heads.py": '''
from cloze.core.options import Options


class HeadsOptions(Options):
    head_sentences: int = 3
    """Of the pairing `heads`: sentences of a document that are kept."""


def heads(documents, config):
    import numpy as np

    from cloze.pipeline.dataset.pairings.segments import NO_LABEL, Segments

    first = documents.document_offsets[:-1]
    end = np.minimum(first + config.head_sentences, documents.document_offsets[1:])
    starts, ends = documents.sentence_offsets[first], documents.sentence_offsets[documents.document_offsets[1:]]
    lengths = np.minimum(documents.sentence_offsets[end] - starts, config.max_single)
    rows = len(documents)
    return Segments(
        document=np.arange(rows),
        offset=documents.sentence_index[first],
        starts=starts,
        lengths=lengths,
        range_offsets=np.arange(rows + 1),
        pair_label=np.full(rows, NO_LABEL, np.int8),
    )
''',
    "vocab/letters.py": '''
from cloze.core.options import Options


class LettersOptions(Options):
    extra_letters: str = ""
    """Of the kind `letters`: letters beside those of the alphabet."""


def train(texts, options, *, size, lowercase, strip_accents):
    from cloze.pipeline.tokenizer.backends import bert_backend
    from cloze.pipeline.tokenizer.special import BERT

    letters = "abcdefghijklmnopqrstuvwxyz.," + options.extra_letters
    pieces = [*BERT, *letters, *(f"##{letter}" for letter in letters)]
    return bert_backend({piece: number for number, piece in enumerate(pieces)}, lowercase, strip_accents)
''',
}
# Table -> the line that opens it, and the line that is added.
LINES = {
    "dataset/masking/registry.py": (
        "RULES = {\n",
        '"every": MaskingRule("cloze.pipeline.dataset.masking.every:choose_every", '
        '"cloze.pipeline.dataset.masking.every:EveryOptions"),',
    ),
    "dataset/pairings/registry.py": (
        "PAIRINGS = {\n",
        '"heads": Pairing("cloze.pipeline.dataset.pairings.heads:heads", '
        'options="cloze.pipeline.dataset.pairings.heads:HeadsOptions"),',
    ),
    "dataset/recipes.py": (
        '= {\n    "bert": bert,\n',
        '"regular": lambda: {"pairing": "heads", "masking": "every", "mask_share": 1.0, '
        '"random_share": 0.0, "mask_copies": 1, "every": 4},',
    ),
    "vocab/kinds.py": (
        "TRAINERS = {\n",
        '"letters": TokenizerTrainer("cloze.pipeline.vocab.letters:train", 70, True, '
        '"cloze.pipeline.vocab.letters:LettersOptions"),',
    ),
}


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a copy of `pipeline` that has one more of each."""
    directory = tmp_path_factory.mktemp("extended")
    copy_packages(directory)
    for name, content in FILES.items():
        (directory / "pipeline" / name).write_text(content)
    for name, (opening, line) in LINES.items():
        table = directory / "pipeline" / name
        text = table.read_text()
        assert text.count(opening) == 1
        table.write_text(text.replace(opening, f"{opening}    {line}\n"))
    return directory


def cloze(directory: Path, *arguments: str) -> tuple[int, dict[str, object], str]:
    """Run the command with the extended pipeline: its exit code, its JSON, and what it says."""
    environment = {**os.environ, "PYTHONPATH": import_path(directory)}
    command = [warm.python(), "-c", warm.ENTRY, *arguments, "--json"]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    return done.returncode, json.loads(lines[-1]) if lines else {}, done.stderr


def test_a_new_one_of_each_works_from_the_command_line(extended: Path) -> None:
    corpus = write_corpus(extended / "corpus", made_documents(12))
    vocab = ["--kind", "letters", "--set", "extra_letters=é", "--corpus", corpus, "--out", "vocab"]
    code, made, said = cloze(extended, "vocab", *vocab)
    assert code == 0, said
    assert made["size"] == 5 + 2 * 29
    dataset = [
        "--corpus",
        corpus,
        "--tokenizer",
        "vocab",
        "--recipe",
        "regular",
        "--length",
        "64",
        "--out",
        "dataset",
    ]
    code, made, said = cloze(
        extended, "dataset", *dataset, "--set", "shards=1", "--set", "head_sentences=2"
    )
    assert code == 0, said
    assert made["rows"] == 12
    [shard] = (extended / "dataset").glob("train-*.arrow")
    table = pa.ipc.open_file(shard).read_all()
    masks = json.loads(table.schema.metadata[b"cloze.dataset"])["masks"]
    assert (masks["rule"], masks["every"], masks["max_span"]) == ("every", 4, 10)
    for row in table.to_pylist():
        [mask] = row["masks"]
        assert mask["positions"] == list(range(1, len(row["input_ids"]) - 1, 4))
    code, _, said = cloze(extended, "dataset", *dataset[:-1], "other", "--set", "every=0")
    assert (
        code,
        "dataset.every (found 0): Input should be greater than or equal to 1" in said,
    ) == (2, True)
