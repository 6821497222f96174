"""mT5 as its releases have it: a file of SentencePiece that ends with the sentinels, a matrix of
logits of its own, gated GELU; compared with transformers there and back, in ten scripts.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from cloze.core.stages.execute import execute
from cloze.labs.seq2seq.text_to_text import TextToTextPipeline
from cloze.model import checkpoint
from cloze.model.hub.config import ExportConfig, ImportConfig
from cloze.model.hub.stages import EXPORT, IMPORT
from cloze.pipeline import tokenizer
from cloze.pipeline.tokenizer.sentencepiece_model import parse
from tests.pipeline.tokenizer.texts import AWKWARD

transformers = pytest.importorskip("transformers")
pytest.importorskip("sentencepiece")

SENTINELS, UNUSED = 100, 12  # of google/mt5-small: 250,100 pieces and 250,112 rows
SCRIPTS = [
    "Der Fluss fließt durch die Stadt Köln.",
    "يجري النهر في المدينة القديمة.",
    "नदी शहर से होकर बहती है।",
    "河流穿过城市，流向大海。",
    "川は街を流れて海に注ぐ。",
    "Река течёт через город.",
    "Ο ποταμός διασχίζει την πόλη.",
    "แม่น้ำไหลผ่านเมือง",
    "강은 도시를 지나 흐른다.",
    "הנהר זורם דרך העיר.",
]


def sentinel(number: int) -> bytes:
    """A piece of SentencePiece's protocol buffer: field 1, with text, score and "user defined"."""
    name = f"▁<extra_id_{number}>".encode()
    body = b"\x0a" + bytes([len(name)]) + name + b"\x15" + struct.pack("<f", 0.0) + b"\x18\x04"
    return b"\x0a" + bytes([len(body)]) + body


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the files and values of google/mt5-small, tiny."""
    import sentencepiece

    base = tmp_path_factory.mktemp("mt5")
    (base / "text.txt").write_text("\n".join(SCRIPTS * 3), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(base / "text.txt"), model_prefix=str(base / "small"), vocab_size=260,
        character_coverage=1.0, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, hard_vocab_limit=False,
        minloglevel=2,
    )  # fmt: skip
    sentinels = b"".join(map(sentinel, reversed(range(SENTINELS))))
    directory = base / "release"
    directory.mkdir()
    spiece = directory / "spiece.model"
    spiece.write_bytes((base / "small.model").read_bytes() + sentinels)
    pieces = len(parse(spiece.read_bytes(), str(spiece)).pieces)
    torch.manual_seed(3)
    config = transformers.MT5Config(
        vocab_size=pieces + UNUSED, d_model=16, d_kv=8, d_ff=24, num_layers=2,
        num_heads=2,
    )  # fmt: skip
    transformers.MT5ForConditionalGeneration(config).save_pretrained(str(directory))
    weights = load_file(str(directory / "model.safetensors"))
    weights["lm_head.weight"] = torch.randn_like(weights["shared.weight"])
    save_file(weights, str(directory / "model.safetensors"), {"format": "pt"})
    written = json.loads((directory / "config.json").read_text())
    # transformers 4 wrote the release
    written |= {"tie_word_embeddings": False, "tokenizer_class": "T5Tokenizer"}
    (directory / "config.json").write_text(json.dumps(written))
    return directory


def theirs(release: Path) -> Any:
    path = str(release / "spiece.model")
    model = parse(Path(path).read_bytes(), path)
    return transformers.T5Tokenizer(
        vocab=list(model.pieces), extra_ids=0, _spm_precompiled_charsmap=model.charsmap
    )


def whole(directory: Path) -> dict[str, torch.Tensor]:
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(str(directory)).eval()
    return {name: tensor.clone() for name, tensor in logits(model).items()}


@torch.no_grad()
def logits(model: Any) -> dict[str, torch.Tensor]:
    ids = torch.tensor([[5, 9, 30, 41, 7, 1], [8, 20, 1, 0, 0, 0]])
    found = model(input_ids=ids, attention_mask=(ids != 0).long(), decoder_input_ids=ids.roll(1, 1))
    return {"logits": found.logits}


def test_it_is_read_and_written_with_the_logits_of_transformers(
    release: Path, tmp_path: Path
) -> None:
    expected = whole(release)["logits"]
    out, back = str(tmp_path / "out"), tmp_path / "back"
    summary = execute(IMPORT, ImportConfig(), {"directory": str(release)}, out).manifest.summary
    assert (summary["initialized"], summary["left_out"]) == ([], [])
    loaded = checkpoint.load(f"{out}/checkpoint")
    values = loaded.model.model_dump()
    assert (values["family"], values["hidden_act"]) == ("t5", "gelu_new")
    assert (values["gated_feed_forward"], values["tie_word_embeddings"]) == (True, False)
    execute(EXPORT, ExportConfig(), {"checkpoint": out}, str(back))
    again = whole(back)["logits"]
    assert float((again - expected).abs().max()) < 1e-5 * float(expected.abs().max())


def test_its_tokens_have_the_ids_of_transformers_in_every_script(
    release: Path, tmp_path: Path
) -> None:
    reference, own = theirs(release), tokenizer.load(str(release))
    assert own.vocab_size == len(reference)
    out, back = str(tmp_path / "out"), str(tmp_path / "back")
    execute(IMPORT, ImportConfig(), {"directory": str(release)}, out)
    execute(EXPORT, ExportConfig(), {"checkpoint": out}, back)
    reference.save_pretrained(str(tmp_path / "saved"))  # a tokenizer.json of a fine-tuned mT5
    saved = tokenizer.load(str(tmp_path / "saved"))
    exported = transformers.AutoTokenizer.from_pretrained(back)
    spans = "河流 <extra_id_0> 城市 <extra_id_99> ."
    for text in (*SCRIPTS, *AWKWARD, spans):
        expected = reference(text).input_ids
        assert exported(text).input_ids == expected, text
        assert own.backend.encode(text).ids == saved.backend.encode(text).ids == expected, text
    assert reference.convert_tokens_to_ids("▁<extra_id_0>") == own.special.mask
    assert own.special.mask == own.vocab_size - 1
    assert own.special.begins == ()


def test_it_is_asked_with_its_own_sentinels(release: Path, tmp_path: Path) -> None:
    """The unused rows behind the pieces are no sentinels."""
    out = str(tmp_path / "out")
    execute(IMPORT, ImportConfig(), {"directory": str(release)}, out)
    first = theirs(release).convert_tokens_to_ids("▁<extra_id_0>")
    pipeline = TextToTextPipeline(out)
    vocabulary = pipeline.pieces.backend.get_vocab(with_added_tokens=True)
    named = [vocabulary[f"<extra_id_{number}>"] for number in range(SENTINELS)]
    assert named == list(range(first, first - SENTINELS, -1))
    asked = pipeline.question("河流 <extra_id_0> 城市 <extra_id_1>")
    assert asked.count(first) == asked.count(first - 1) == 1
    assert asked[-1] == 1


@pytest.mark.parametrize("model_type", ["umt5", "xlm-roberta-xl"])
def test_its_relatives_are_refused_with_the_reason(model_type: str, tmp_path: Path) -> None:
    from cloze.core.errors import DataError

    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(DataError, match=f"{model_type}.*whose"):
        execute(IMPORT, ImportConfig(), {"directory": str(tmp_path)}, str(tmp_path / "out"))
