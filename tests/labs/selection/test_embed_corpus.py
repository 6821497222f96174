"""Stages vectors and semdedup together: a corpus, a tiny checkpoint, and the corpus without
near-paraphrases.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cloze.core.arrow import read_arrow
from cloze.core.config import parse_config
from cloze.core.errors import ClozeError
from cloze.core.stages.execute import BuildResult, execute
from cloze.core.stages.execution import Execution
from cloze.flows.graph.stages import executable
from cloze.labs.embed import EmbeddingPipeline
from cloze.labs.selection.embed_corpus import windows_of
from cloze.labs.selection.stages import SEMDEDUP as STAGE
from cloze.labs.selection.stages import VECTORS, SemDedupConfig, VectorsConfig
from cloze.labs.vectors import SCALE, read_vectors
from tests.pipeline.corpus.corpora import rows, write_corpus
from tests.tiny_models import write_checkpoint

LONG = "the cat sat on the mat in the park of paris."
DOCUMENTS = [
    ("a", [LONG, "the dog ran."]),
    ("b", [LONG, "the dogs ran."]),  # the same but for a letter
    ("c", ["a", "walk", "walking walked walks."]),
    ("d", ["paris is the capital of a park"]),
    ("e", [""]),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, BuildResult]:
    """A corpus, a checkpoint, and the vectors that it gives the corpus."""
    base = tmp_path_factory.mktemp("vectors")
    corpus = write_corpus(base / "corpus", DOCUMENTS, shards=2)
    checkpoint = write_checkpoint(base / "checkpoint", base / "scratch")
    return corpus, checkpoint, make(corpus, checkpoint, base / "vectors")


def make(corpus: str, checkpoint: str, out: Path, **settings: object) -> BuildResult:
    config = parse_config(VectorsConfig, {"precision": "fp32", **settings}, "vectors")
    how = Execution(device="cpu")
    return execute(
        VECTORS, config, {"corpus": corpus, "checkpoint": checkpoint}, str(out), execution=how
    )


def test_a_vector_is_that_of_the_text(made: tuple[str, str, BuildResult]) -> None:
    corpus, checkpoint, result = made
    assert result.manifest.summary["documents"] == len(DOCUMENTS)
    texts = {
        row["key"]: " ".join(row["sentences"])
        for path in Path(corpus).glob("corpus-*")
        for row in read_arrow(str(path)).to_pylist()
    }
    embedder = EmbeddingPipeline(checkpoint, normalize=True)
    seen = 0
    for path in sorted(Path(result.artifact).glob("vectors-*.arrow")):
        keys, vectors = read_vectors(str(path))
        assert (
            keys.tolist()
            == read_arrow(f"{corpus}/{path.name.replace('vectors', 'corpus')}")["key"].to_pylist()
        )
        for key, vector in zip(keys.tolist(), vectors, strict=True):
            text, seen = texts[key], seen + 1
            if not text:
                assert not vector.any()
                continue
            windows = windows_of(text, 4 * embedder.max_length, 4)
            expected = embedder.embed(windows).sum(axis=0)
            expected /= np.linalg.norm(expected)
            np.testing.assert_allclose(vector / SCALE, expected, atol=1 / SCALE)
    assert seen == len(DOCUMENTS)


def test_the_same_again(made: tuple[str, str, BuildResult], tmp_path: Path) -> None:
    corpus, checkpoint, result = made
    assert (
        make(corpus, checkpoint, tmp_path / "again").manifest.content_sha256
        == result.manifest.content_sha256
    )


def test_an_interrupted_attempt_s_shards_count(
    made: tuple[str, str, BuildResult], tmp_path: Path
) -> None:
    _, checkpoint, whole = made
    corpus = write_corpus(tmp_path / "corpus", DOCUMENTS, shards=2)
    last = max(Path(corpus).glob("corpus-*.arrow"))
    content = last.read_bytes()
    last.write_bytes(b"")
    with pytest.raises(ClozeError):
        make(corpus, checkpoint, tmp_path / "vectors")
    assert list((tmp_path / "vectors").glob("vectors-*"))
    last.write_bytes(content)
    resumed = make(corpus, checkpoint, tmp_path / "vectors").manifest
    assert resumed.summary == whole.manifest.summary
    assert resumed.content_sha256 == whole.manifest.content_sha256


@pytest.mark.usefixtures("warm")
def test_ranks_share_the_shards_and_make_the_same_files(
    made: tuple[str, str, BuildResult], tmp_path: Path
) -> None:
    _, checkpoint, _ = made
    corpus = write_corpus(
        tmp_path / "corpus", [*DOCUMENTS, *((f"f{n}", [LONG] * n) for n in range(30))], shards=3
    )
    config = parse_config(VectorsConfig, {"precision": "fp32"}, "vectors")
    found = []
    for processes in (1, 2):
        how = Execution(device="cpu", processes=processes, threads=1)
        inputs = {"corpus": corpus, "checkpoint": checkpoint}
        found.append(
            execute(
                executable("vectors"), config, inputs, str(tmp_path / f"{processes}"), execution=how
            ).manifest
        )
    assert found[0].content_sha256 == found[1].content_sha256
    assert found[0].summary == found[1].summary
    assert (
        found[0].summary["documents"],
        len([one for one in found[0].files if one.path.startswith("vectors-")]),
    ) == (35, 3)


def test_the_near_paraphrase_goes_and_the_longer_stays(
    made: tuple[str, str, BuildResult], tmp_path: Path
) -> None:
    corpus, _, result = made
    config = parse_config(SemDedupConfig, {"similarity": 0.98, "center": False}, "semdedup")
    kept = rows(
        execute(
            STAGE, config, {"corpus": corpus, "vectors": result.artifact}, str(tmp_path / "out")
        )
    )
    assert "b" in {row["id"] for row in kept}
    assert "a" not in {row["id"] for row in kept}
    assert {"c", "d", "e"} <= {row["id"] for row in kept}
    assert [row["sentences"] for row in kept if row["id"] == "b"] == [DOCUMENTS[1][1]]


@pytest.mark.parametrize(
    ("text", "length", "most"),
    [("", 8, 2), ("one two three four five six", 10, 4), ("a" * 50, 10, 4), ("x y " * 40, 12, 3)],
)
def test_windows_hold_the_text_and_cut_no_word(text: str, length: int, most: int) -> None:
    windows = windows_of(text, length, most)
    assert len(windows) <= most
    assert all(windows)
    words = " ".join(windows).split()
    assert words[:-1] == text.split()[: max(0, len(words) - 1)]
    assert bool(words) == bool(text)


def test_windows_of_scripts_without_spaces() -> None:
    text = "，".join(["今天天气"] * 600)
    windows = windows_of(text, 400, 4)
    assert text.startswith("".join(windows))
    assert [len(window) for window in windows] == pytest.approx([115] * 4, abs=5)
    thai = "กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย" * 20
    windows = windows_of(thai, 400, 9)
    assert "".join(windows) == thai
    assert all(180 < len(window) < 240 for window in windows)
