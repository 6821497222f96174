"""Attention maps of texts are those of transformers, of the tokens that the model reads."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cloze
from cloze.core.errors import UsageError
from cloze.flows.cli import main
from cloze.model import checkpoint
from cloze.model.hub.write import write_directory
from tests.tiny_models import tiny_config, tiny_model, write_checkpoint, write_tokenizer

TEXT, PAIR = "the cats sat on the mat in paris.", "a dog walked"
TOKENS = ["[CLS]", *"the cat ##s sat on the mat in paris .".split(), "[SEP]"]


def theirs(path: str, directory: Path, tokens: list[str], second: int) -> list[np.ndarray]:
    """The maps that transformers returns for an export of the checkpoint."""
    transformers = pytest.importorskip("transformers")
    write_directory(checkpoint.load(path), str(directory))
    model = transformers.AutoModel.from_pretrained(str(directory), attn_implementation="eager")
    vocabulary = transformers.AutoTokenizer.from_pretrained(str(directory)).get_vocab()
    inputs = {"input_ids": torch.tensor([[vocabulary[token] for token in tokens]])}
    if getattr(model.config, "type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = (torch.arange(len(tokens)) >= second).long()[None]
    if model.config.model_type == "longformer":  # its first token is global, as in our classifiers
        inputs["global_attention_mask"] = (torch.arange(len(tokens)) == 0).long()[None]
    with torch.no_grad():
        outputs = model.eval()(**inputs, output_attentions=True)
    if model.config.model_type == "longformer":
        return unbanded(outputs, len(tokens))
    return [layer[0].numpy() for layer in outputs.attentions]


def unbanded(outputs: Any, length: int) -> list[np.ndarray]:
    """Their weights of the window and of the first token, which is global, as square maps."""
    maps = []
    for local, everywhere in zip(outputs.attentions, outputs.global_attentions, strict=True):
        weights, reach = local[0].numpy(), (local.shape[-1] - 2) // 2
        square = np.zeros((len(weights), length, length), np.float32)
        for query in range(length):
            for key in range(max(1, query - reach), min(length, query + reach + 1)):
                square[:, query, key] = weights[:, query, 1 + reach + key - query]
            square[:, query, 0] += weights[:, query, 0]
        square[:, 0] = everywhere[0, :, :length, 0].numpy()
        maps.append(square)
    return maps


@pytest.mark.parametrize("pair", [None, PAIR])
@pytest.mark.parametrize("family", ["bert", "albert", "deberta", "longformer", "gpt2"])
def test_maps_are_those_of_transformers(family: str, pair: str | None, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "checkpoint", tmp_path / "scratch", family=family)
    (found,) = cloze.load(path).attention([TEXT], None if pair is None else [pair])
    assert found["tokens"][: len(TOKENS)] == TOKENS
    assert found["second"] == len(TOKENS)
    assert (len(found["tokens"]) > len(TOKENS)) == (pair is not None)
    expected = theirs(path, tmp_path / "hf", found["tokens"], found["second"])
    for ours, their in zip(found["maps"], expected, strict=True):
        np.testing.assert_allclose(ours, their, atol=1e-5)


def test_a_model_of_one_causal_objective_sees_earlier_tokens_alone(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    checkpoint.save_weights(
        str(path),
        model=tiny_config(),
        state=tiny_model().state_dict(),
        tokenizer=write_tokenizer(tmp_path / "scratch"),
        heads={"masked_lm": {"objectives": ["clm"]}},
        step=1,
    )
    checkpoint.finalize(str(path))
    (found,) = cloze.load(str(path)).attention([TEXT])
    for layer in found["maps"]:
        assert not np.triu(layer, 1).any()
        np.testing.assert_allclose(layer.sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize("family", ["elmo", "static"])
def test_models_without_attention_are_refused(family: str, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "checkpoint", tmp_path / "scratch", family=family)
    with pytest.raises(UsageError, match=f"is an? {family} model, whose encoder records no"):
        cloze.load(path).attention([TEXT])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    base = tmp_path_factory.mktemp("attention")
    return write_checkpoint(base / "checkpoint", base / "scratch")


@pytest.mark.usefixtures("warm")
def test_the_page_has_the_maps_and_loads_nothing(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    arguments = ["attention", path, TEXT, "</script> the", "--pair", PAIR, "--out", str(page)]
    assert main(arguments) == 0
    content = page.read_text("utf-8")
    assert not re.search(r"(src|href)=\"(?!data:)|url\(|import ", content)
    (data,) = re.findall(r'<script id="data"[^>]*>(.*?)</script>', content, re.DOTALL)
    first, second = json.loads(data)["texts"]
    (expected,) = cloze.load(path).attention([TEXT], [PAIR])
    assert first["tokens"] == expected["tokens"]
    assert first["second"] == len(TOKENS)
    assert "</script>" not in data
    assert second["tokens"][1] == "[UNK]"
    weights = np.frombuffer(base64.b64decode(first["weights"]), np.uint8) / 255
    flat = np.concatenate([layer.ravel() for layer in expected["maps"]])
    assert first["heads"] == [4, 4]
    np.testing.assert_allclose(weights, flat, atol=0.5 / 255 + 1e-4)
    assert main([*arguments[:2], TEXT, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    np.testing.assert_allclose(
        printed["maps"][1], cloze.load(path).attention([TEXT])[0]["maps"][1], atol=1e-4
    )


def test_a_line_per_head_for_people(path: str) -> None:
    from rich.console import Console

    from cloze.labs.inside.commands import _show_heads

    (found,) = cloze.load(path).attention([TEXT])
    answer = {**found, "maps": [layer.tolist() for layer in found["maps"]]}
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(_show_heads(answer))
    lines = console.export_text().splitlines()
    assert len(lines) == 1 + 8
    cells = lines[1 + 5].split()
    maps = found["maps"][1][1]
    assert cells[0] == "2.2"
    measured = [
        maps.diagonal(-1).mean(), maps.diagonal(1).mean(), maps.diagonal().mean(),
        maps[:, 0].mean(), maps[:, -1].mean(), -(maps * np.log(maps)).sum(-1).mean(),
    ]  # fmt: skip
    np.testing.assert_allclose([float(cell) for cell in cells[1:7]], measured, atol=0.006)
    query, key = np.unravel_index(maps.argmax(), maps.shape)
    assert cells[7:10] == [found["tokens"][query], "→", found["tokens"][key]]


@pytest.mark.usefixtures("warm")
def test_what_cannot_be_shown_is_refused(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = cloze.load(path)
    with pytest.raises(UsageError, match=r"has 42 tokens.* reads 32; shorten"):
        model.attention(["cat " * 40])
    with pytest.raises(UsageError, match="has an empty"):
        model.attention([" "])
    with pytest.raises(UsageError, match=r"pairs \(1\)"):
        model.attention([TEXT, TEXT], [PAIR])
    assert model.attention(TEXT)["tokens"] == model.attention([TEXT])[0]["tokens"]
    assert main(["attention", path, "cat " * 40]) == 2
    assert "reads 32; shorten it" in capsys.readouterr().err
    assert main(["attention", str(Path(path) / "nowhere"), "cat"]) == 3
