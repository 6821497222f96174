"""heads: means are those of plain loops over single sequences, in padded and in packed rows, and
heads parse as a loop over words says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cloze
from cloze.core.artifacts.artifact import read_manifest
from cloze.core.errors import DataError, UsageError
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext
from cloze.flows.cli import main
from cloze.flows.report.report_nodes import NodePlacement, ReportNode
from cloze.labs.inside.attention import AttentionReader
from cloze.labs.inside.head_statistics import PADDING, HeadStatistics, TokenRows, read_treebank
from cloze.labs.inside.heads import attend, positional_heads
from cloze.labs.inside.plots import draw_heads as draw
from cloze.labs.inside.plots import head_pictures
from cloze.labs.inside.stages import HEADS as STAGE
from cloze.labs.inside.stages import HeadsConfig
from cloze.model.data.shards import ShardedRows
from tests.labs.test_embed import write_t5
from tests.model.datasets import write_dataset
from tests.tiny_models import PIECES, write_checkpoint

TEXTS = ["the cats sat on the mat.", "a dog ran", "the park of paris, the capital . is . a park"]
TREEBANK = """\
# text = The cats didn't sit.
1\tThe\tthe\tDET\tDT\t_\t2\tdet\t_\t_
2\tcats\tcat\tNOUN\tNNS\t_\t5\tnsubj\t_\t_
3-4\tdidn't\t_\t_\t_\t_\t_\t_\t_\t_
3\tdid\tdo\tAUX\tVBD\t_\t5\taux\t_\t_
4\tn't\tnot\tPART\tRB\t_\t5\tadvmod\t_\t_
5\tsit\tsit\tVERB\tVB\t_\t0\troot\t_\tSpaceAfter=No
6\t.\t.\tPUNCT\t.\t_\t5\tpunct\t_\t_

1\tdu\tde\tADP\t_\t_\t2\tcase\t_\t_
1.1\tle\tle\tDET\t_\t_\t_\t_\t_\t_
2\tpark\tpark\tNOUN\t_\t_\t0\troot\t_\t_
3-4\tdes\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
3\tde\tde\tADP\t_\t_\t4\tcase\t_\t_
4\tles\tle\tDET\t_\t_\t2\tdet\t_\t_
5\t.\t.\tPUNCT\t_\t_\t2\tpunct\t_\t_
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    base = tmp_path_factory.mktemp("heads")
    return write_checkpoint(base / "checkpoint", base / "scratch")


@pytest.fixture(scope="module")
def treebank(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("treebank") / "two.conllu"
    path.write_text(TREEBANK, encoding="utf-8")
    return str(path)


def measured(path: str, out: Path, dataset: str | None = None, **values: Any) -> dict[str, Any]:
    """Run the stage; its file."""
    out.mkdir()
    inputs = {"checkpoint": path} | ({} if dataset is None else {"dataset": dataset})
    how = Execution(device="cpu", threads=1)
    build = BuildContext(path=str(out), inputs=inputs, execution=how, fingerprint="")
    STAGE.run(HeadsConfig.model_validate(values), build)
    content: dict[str, Any] = json.loads((out / "metrics.json").read_text("utf-8"))
    return content


def written(path: Path, texts: list[str] = TEXTS) -> str:
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return str(path)


def queries(path: str, texts: list[str]) -> Iterator[tuple[list[str], int, np.ndarray]]:
    """Tokens, position and weights [layers, N, L] of every token that attends."""
    for found in cloze.load(path).attention(texts):
        maps = np.stack(found["maps"]).astype(np.float64)
        for position in range(len(found["tokens"])):
            yield found["tokens"], position, maps[:, :, position]


def test_means_are_those_of_a_loop(path: str, tmp_path: Path) -> None:
    found = measured(path, tmp_path / "out", texts=written(tmp_path / "texts.txt"))["heads"]
    every = list(queries(path, TEXTS))
    counts: dict[str, int] = {}
    for tokens, position, _ in every:
        if position == 0:
            for token in tokens:
                counts[token] = counts.get(token, 0) + 1
    values: dict[str, list[np.ndarray]] = {}
    for tokens, position, weights in every:
        for name, offset in {"previous": -1, "next": 1, "itself": 0}.items():
            if 0 <= position + offset < len(tokens):
                values.setdefault(name, []).append(weights[:, :, position + offset])
        values.setdefault("first", []).append(weights[:, :, 0])
        values.setdefault("separator", []).append(weights[:, :, len(tokens) - 1])
        marks = [number for number, token in enumerate(tokens) if token in (".", ",")]
        if marks:
            values.setdefault("punctuation", []).append(weights[:, :, marks].sum(-1))
        values.setdefault("entropy", []).append(-(weights * np.log(weights)).sum(-1))
        if position + 1 < len(tokens):  # the separator counts neither as query nor as key
            values.setdefault("confidence", []).append(weights[:, :, :-1].max(-1))
            least = min(counts[token] for token in tokens[1:-1] if token != "[UNK]")
            rarest = [
                counts[token] == least and token not in ("[CLS]", "[SEP]", "[UNK]")
                for token in tokens
            ]
            hits = np.array(rarest)[weights[:, :, :-1].argmax(-1)]
            values.setdefault("rarest", []).append(hits)
    for name, parts in values.items():
        np.testing.assert_allclose(found[name], np.mean(parts, axis=0), atol=1e-6, err_msg=name)
    near = [weights[:, :, :-1].argmax(-1) == position - 1
            for tokens, position, weights in every if 0 < position < len(tokens) - 1]  # fmt: skip
    np.testing.assert_allclose(found["maximum_at"]["-1"], np.mean(near, axis=0), atol=1e-6)
    flows = [rollout(np.stack(one["maps"]).mean(1)) for one in cloze.load(path).attention(TEXTS)]
    first = np.concatenate([flow[:, :, 0] for flow in flows], axis=1).mean(1)
    np.testing.assert_allclose(found["rollout_to_first"], first, atol=1e-6)


def rollout(maps: np.ndarray) -> np.ndarray:
    """Abnar and Zuidema's equation 1, [layers, L, L]."""
    products = [(maps[0] + np.eye(maps.shape[-1])) / 2]
    for layer in maps[1:]:
        products.append((layer + np.eye(maps.shape[-1])) / 2 @ products[-1])
    return np.stack(products)


def statistics(reader: AttentionReader, sequences: list[list[int]]) -> dict[str, Any]:
    """Statistics of sequences in a batch of padded rows, one each."""
    lengths = torch.tensor([len(one) for one in sequences])
    ids = torch.zeros(len(sequences), int(lengths.max()), dtype=torch.int64)
    for row, one in zip(ids, sequences, strict=True):
        row[: len(one)] = torch.tensor(one)
    real = torch.arange(ids.shape[1]) < lengths[:, None]
    number = torch.arange(len(ids))[:, None].where(real, PADDING)
    frequency = torch.bincount(ids[real], minlength=len(PIECES))
    measure = HeadStatistics(reader.pieces, frequency)
    batch = TokenRows(input_ids=ids, token_type_ids=0 * ids, sequence=number)
    measure.begin(batch)
    attend(reader, batch, measure)
    return measure.result()


@pytest.mark.parametrize("packed", [False, True])
def test_rows_of_a_dataset_count_sequence_by_sequence(
    packed: bool, path: str, tmp_path: Path
) -> None:
    reader = AttentionReader(path, torch.device("cpu"))
    lengths = {"lengths": lambda rng: int(rng.integers(4, 9))} if packed else {}
    dataset = write_dataset(
        tmp_path / "dataset", rows=2, heldout=7, length=24, vocab_size=len(PIECES), packed=packed,
        pair_task=None, tokenizer=reader.pieces.fingerprint, **lengths,
    )  # fmt: skip
    found = measured(path, tmp_path / "out", dataset)
    shards = ShardedRows(dataset, "heldout")
    rows = shards.take(np.arange(7), np.zeros(7, np.int64))
    starts = np.cumsum(rows.lengths) - rows.lengths
    if packed:
        assert rows.boundary_counts is not None
        assert max(rows.boundary_counts) > 1
        starts = np.repeat(starts, rows.boundary_counts) + rows.boundaries
    sequences = [part.tolist() for part in np.split(rows.ids.astype(np.int64), starts[1:])]
    expected = json.loads(json.dumps(statistics(reader, sequences)))
    assert found["rows"] == 7
    for name, values in expected.items():
        by_offset = values if isinstance(values, dict) else {"": values}
        ours = found["heads"][name] if isinstance(values, dict) else {"": found["heads"][name]}
        for offset, layers in by_offset.items():
            pair = [np.array(one, float) for one in (ours[offset], layers)]
            np.testing.assert_allclose(*pair, atol=1e-5, err_msg=f"{name} {offset}")
    other = write_dataset(tmp_path / "other", vocab_size=len(PIECES), length=16)
    with pytest.raises(UsageError, match="another tokenizer"):
        measured(path, tmp_path / "refused", other)


def test_words_of_a_treebank(treebank: str) -> None:
    first, second = read_treebank(treebank)
    assert first.text == "The cats didn't sit."
    assert [first.text[begin:end] for begin, end in first.spans] == [
        "The", "cats", "did", "n't", "sit", "."
    ]  # fmt: skip
    assert first.heads.tolist() == [1, 4, 4, 4, -1, 4]
    assert first.relations == ("det", "nsubj", "aux", "advmod", "root", "punct")
    assert second.text == "du park de les."  # the words of `des` do not join to it
    assert second.heads.tolist() == [1, -1, 3, 1, 1]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("1\tThe", "The", "line 2 has 9 columns"),
        ("\t5\tnsubj", "\t9\tnsubj", r"sentence 1 .*head is none of its words"),
        ("\t5\tnsubj", "\t2\tnsubj", r"sentence 1 .*head is none of its words"),
        ("6\t.\t.", "7\t.\t.", r"sentence 1 .*number its words from 1"),
        ("3-4\tdidn't", "3-7\tdidn't", r"sentence 1 .*'3-7' that is no range"),
        ("3-4\tdidn't", "4-3\tdidn't", r"sentence 1 .*'4-3' that is no range"),
        ("3-4\tdidn't", "3-\u00e9\tdidn't", r"sentence 1 .*'3-\u00e9' that is no range"),
    ],
)
def test_what_is_no_treebank_is_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.conllu"
    path.write_text(TREEBANK.replace(old, new), encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_treebank(str(path))
    path.write_text("# nothing\n\n", encoding="utf-8")
    with pytest.raises(DataError, match="has no sentences"):
        read_treebank(str(path))


def test_lines_of_a_treebank_end_as_those_of_other_files(treebank: str, tmp_path: Path) -> None:
    """U+0085 and U+2028 may be in a word; bytes that are no UTF-8 are told by their line."""
    path, text = tmp_path / "lines.conllu", Path(treebank).read_text("utf-8")
    word = read_treebank(treebank)[0].text.split()[0]
    path.write_text(text.replace(f"\t{word}\t", "\ta\x85b\u2028c\t"), encoding="utf-8")
    assert len(read_treebank(str(path))) == 2
    for end in ("\r\n", "\r"):
        path.write_bytes(text.replace("\n", end).encode())
        found = [sentence.text for sentence in read_treebank(str(path))]
        assert found == [sentence.text for sentence in read_treebank(treebank)]
    path.write_bytes(b"1\tcaf\xe9" + b"\t_" * 8 + b"\n")
    with pytest.raises(DataError, match="line 1: byte 6 is not UTF-8"):
        read_treebank(str(path))


@pytest.mark.parametrize("vocabulary", ["bert", "t5"])
def test_heads_parse_as_a_loop_over_words_says(
    vocabulary: str, path: str, treebank: str, tmp_path: Path
) -> None:
    path = write_t5(tmp_path) if vocabulary == "t5" else path
    found = measured(path, tmp_path / "out", treebank=treebank)
    sentences = read_treebank(treebank)
    pieces = AttentionReader(path, torch.device("cpu")).pieces
    scores: dict[tuple[str, str], np.ndarray] = {}
    offsets: dict[str, list[int]] = {}
    for sentence in sentences:
        ((_, spans),) = pieces.encode_with_offsets([sentence.text])
        shift = len(pieces.special.begins)
        words = [[shift + i for i, (begin, _) in enumerate(spans) if first <= begin < last]
                 for first, last in sentence.spans]  # fmt: skip
        (attention,) = cloze.load(path).attention([sentence.text])
        maps = np.stack(attention["maps"])
        assert all(words)
        between = np.stack(
            [np.stack([maps[:, :, row][..., column].sum(-1).mean(-1) for column in words], -1)
             for row in words], -2,
        )  # fmt: skip
        for word, (head, name) in enumerate(zip(sentence.heads, sentence.relations, strict=True)):
            if head < 0:
                continue
            for direction, weights in (
                ("to head", between[:, :, word].copy()),
                ("from head", between[:, :, :, word].copy()),
            ):
                weights[:, :, word] = -1
                for key in (name, "all"):
                    hits = weights.argmax(-1) == head
                    scores[key, direction] = scores.get((key, direction), 0) + hits
            for key in (name, "all"):
                offsets.setdefault(key, []).append(head - word)
    assert {row["relation"] for row in found["relations"]} == {name for name, _ in scores}
    for row in found["relations"]:
        name, count = row["relation"], row["count"]
        best = max(scores[name, direction].max() for direction in ("to head", "from head"))
        assert count == len(offsets[name])
        assert row["accuracy"] == pytest.approx(best / count)
        own = scores[name, row["direction"]][row["layer"] - 1, row["head"] - 1]
        assert own == best
        assert row["offset_accuracy"] == pytest.approx(
            max(offsets[name].count(offset) for offset in offsets[name]) / count
        )
    assert found["rows"] == 2
    assert found["skipped_sentences"] == 0
    assert found["metrics"]["dependencies"] == found["relations"][0]["accuracy"]


def test_nine_of_ten_make_a_positional_head() -> None:
    at = {"-2": [[0.0, 0.0]], "-1": [[0.9, 0.89]], "0": [[1.0, 1.0]], "1": [[None, 0.1]],
          "2": [[0.0, 0.0]]}  # fmt: skip
    assert positional_heads({"entropy": [[1.0, 1.0]], "maximum_at": at}) == 1


@pytest.mark.usefixtures("warm")
def test_the_command(
    path: str, treebank: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture, out = tmp_path / "heads.svg", str(tmp_path / "heads")
    arguments = ["heads", path, "--treebank", treebank, "--svg", str(picture), "--out", out]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "previous" in printed
    assert "nsubj" in printed
    content = picture.read_text("utf-8")
    assert content.startswith("<svg")
    assert "entropy (nats)" in content
    placement = NodePlacement(section="heads")
    node = ReportNode(name="heads", path=out, manifest=read_manifest(out), placement=placement)
    ((title, drawn, _),) = head_pictures([node])
    assert (title, drawn) == ("Attention heads: heads", content)
    assert main(["heads", path, "--texts", written(tmp_path / "texts"), "--max-length", "99"]) == 2
    assert "reads (32); use 32 or less" in capsys.readouterr().err
    assert main(["heads", path]) == 2
    assert "--dataset" in capsys.readouterr().err
    assert main(["heads", path, "--treebank", str(tmp_path / "texts")]) == 3
    assert "columns" in capsys.readouterr().err


def test_a_picture_of_rows_without_punctuation() -> None:
    names = ("previous", "next", "first", "separator", "entropy")
    by_head = {name: [[0.1, 0.2], [0.3]] for name in names}
    assert draw({"by_head": {**by_head, "punctuation": [[None, None], [None]]}}).startswith("<svg")


ROOTS = "".join(f"1\t{word}\t_\t_\t_\t_\t0\troot\t_\t_\n\n" for word in ("cat", "dog"))


def test_a_treebank_without_dependencies_is_refused(path: str, tmp_path: Path) -> None:
    (tmp_path / "roots.conllu").write_text(ROOTS, encoding="utf-8")
    with pytest.raises(DataError, match="no word of the treebank has a head"):
        measured(path, tmp_path / "out", treebank=str(tmp_path / "roots.conllu"))


def test_a_relation_may_be_called_all(path: str, treebank: str, tmp_path: Path) -> None:
    named = tmp_path / "all.conllu"
    named.write_text(Path(treebank).read_text("utf-8").replace("\tdet\t", "\tall\t"), "utf-8")
    found = measured(path, tmp_path / "out", treebank=str(named))
    assert found["metrics"]["relations"] == len(found["relations"]) - 1


def test_cut_texts_are_counted(path: str, tmp_path: Path) -> None:
    texts = written(tmp_path / "texts", ["the cat", "the cat sat on the mat and the dog sat"])
    (tmp_path / "out").mkdir()
    build = BuildContext(
        path=str(tmp_path / "out"),
        inputs={"checkpoint": path},
        execution=Execution(device="cpu", threads=1),
        fingerprint="",
    )
    summary = STAGE.run(HeadsConfig(texts=texts, max_length=5), build).summary
    assert "1 of 2 texts are cut to 5 tokens" in STAGE.headline(summary)
