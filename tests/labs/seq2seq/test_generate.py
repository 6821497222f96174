"""generate: what the model says token by token, with what was read before kept; as transformers'
generate; and chance.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cloze.core.config import parse_config
from cloze.core.errors import UsageError
from cloze.core.stages.execute import execute
from cloze.labs.seq2seq import generate
from cloze.labs.seq2seq.generate import SamplingParams, TextGenerationPipeline, sampling_params
from cloze.labs.seq2seq.stages import GenerateConfig
from cloze.model import checkpoint
from cloze.model.families.models import load_model
from cloze.model.hub.stages import EXPORT, ExportConfig
from cloze.model.use.fill_mask import FillMaskPipeline
from tests.tiny_models import PIECES, write_checkpoint, write_classifier

TEXTS = ["the cat sat on the", "a", "paris is the capital of a park in the mat .", "the dog"]
SEP, CLS, PAD = (PIECES.index(name) for name in ("[SEP]", "[CLS]", "[PAD]"))
each_family = pytest.mark.parametrize("family", ["gpt2", "ltr"])


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Small weights, so that models do not end at once: the end is as likely as any other token."""
    base = tmp_path_factory.mktemp("generate")
    return {
        name: write_checkpoint(base / name, base / f"{name}-scratch", family=name, seed=3)
        for name in ("gpt2", "ltr")
    }


def token_by_token(path: str, text: str, tokens: int) -> tuple[tuple[int, ...], str]:
    """The likeliest next token of the whole text, again and again."""
    loaded, question = checkpoint.load(path), TextGenerationPipeline(path).question(text)
    model, ids = load_model(loaded.model, loaded.state), list(question)
    with torch.inference_mode():
        for _ in range(tokens):
            rows = torch.tensor([ids])
            best = int(
                model({"input_ids": rows, "token_type_ids": 0 * rows})["lm_logits"][0, -1].argmax()
            )
            if best == SEP:
                return tuple(ids[len(question) :]), "end"
            ids.append(best)
            if len(ids) == loaded.model.max_position_embeddings:
                return tuple(ids[len(question) :]), "model"
    return tuple(ids[len(question) :]), "tokens"


@each_family
@pytest.mark.parametrize("tokens", [1, 7, 40])
def test_what_is_kept_changes_nothing(paths: dict[str, str], family: str, tokens: int) -> None:
    """Texts of several lengths, written together, beside each alone and read as a whole for every
    token.
    """
    found = TextGenerationPipeline(paths[family]).generate(TEXTS, tokens=tokens)
    for text, (one,) in zip(TEXTS, found, strict=True):
        assert (one.ids, one.stopped) == token_by_token(paths[family], text, tokens)
    assert len({one.ids for (one,) in found}) > 1  # what was read before counts


@pytest.mark.parametrize("capacity", [1, 20, 64])
def test_batches_change_no_text(
    paths: dict[str, str], capacity: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row each, a few rows, several batches of several rows: each prompt has its texts."""
    generator = TextGenerationPipeline(paths["gpt2"])
    choice = SamplingParams(temperature=1.0)
    given = {"tokens": 5, "samples": 3, "choice": choice}
    together = generator.generate(TEXTS, **given)
    monkeypatch.setattr(generate, "TOKENS", capacity)
    assert generator.generate(TEXTS, **given) == together
    assert all(one.ids or one.stopped == "end" for texts in together for one in texts)


def test_each_token_sees_its_own_row_alone(paths: dict[str, str]) -> None:
    """The logits, not their highest alone: of a short text beside a longer one, behind whose end
    padding was read first.
    """
    generator = TextGenerationPipeline(paths["gpt2"])
    seen: list[torch.Tensor] = []
    logits = generator._logits

    def keeping(*arguments: Any) -> torch.Tensor:
        seen.append(logits(*arguments))
        return seen[-1]

    generator._logits = keeping  # type: ignore[method-assign]
    generator.generate([TEXTS[2], TEXTS[1]], tokens=5)
    together, seen[:] = [step[1] for step in seen], []
    generator.generate([TEXTS[1]], tokens=5)
    assert len(seen) >= 3
    for step, alone in zip(together, seen, strict=False):
        torch.testing.assert_close(step, alone[0], atol=1e-5, rtol=1e-5)


@each_family
def test_transformers_writes_the_same(paths: dict[str, str], family: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    execute(EXPORT, ExportConfig(), {"checkpoint": paths[family]}, str(tmp_path / "hub"))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        str(tmp_path / "hub"), local_files_only=True
    ).eval()
    said = theirs.generation_config
    assert (said.bos_token_id, said.eos_token_id, said.pad_token_id) == (CLS, SEP, PAD)
    generator = TextGenerationPipeline(paths[family])
    for text, (one,) in zip(TEXTS, generator.generate(TEXTS, tokens=15), strict=True):
        ids = torch.tensor([generator.question(text)])
        whole = theirs.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=15, do_sample=False
        )[0].tolist()
        expected = whole[ids.shape[1] :]
        assert list(one.ids) == (expected[: expected.index(SEP)] if SEP in expected else expected)


def test_a_text_ends_at_the_end_token(paths: dict[str, str], tmp_path: Path) -> None:
    """And goes on to the number of tokens, or to what the model reads, where the end is never
    likely.
    """
    loaded = checkpoint.load(paths["ltr"])

    def written(bias: float, tokens: int) -> Any:
        generator = TextGenerationPipeline(paths["ltr"])
        with torch.no_grad():
            generator._head.bias[SEP] = bias
        ((one,),) = generator.generate([TEXTS[0]], tokens=tokens)
        return one

    ended = written(1e4, 5)
    assert (ended.ids, ended.continuation, ended.stopped) == ((), "", "end")
    assert (len(written(-1e4, 5).ids), written(-1e4, 5).stopped) == (5, "tokens")
    full = written(-1e4, 100)
    assert (len(full.ids) + 6, full.stopped) == (loaded.model.max_position_embeddings, "model")
    assert full.text == f"{TEXTS[0]}{full.continuation}"


def draws(choice: SamplingParams, logits: Any, count: int = 4000) -> Any:
    return (
        np.bincount([choice.token(logits, key) for key in range(count)], minlength=len(logits))
        / count
    )


def test_chance_draws_as_the_probabilities_say() -> None:
    chances = np.array([0.05, 0.5, 0.15, 0.3, 0.0])
    with np.errstate(divide="ignore"):
        logits = np.log(chances)
    assert draws(SamplingParams(temperature=1.0), logits) == pytest.approx(chances, abs=0.03)
    squared = chances**2 / (chances**2).sum()
    assert draws(SamplingParams(temperature=0.5), logits) == pytest.approx(squared, abs=0.03)
    assert draws(SamplingParams(temperature=1.0, top_k=2), logits) == pytest.approx(
        [0, 0.625, 0, 0.375, 0], abs=0.03
    )
    assert draws(SamplingParams(temperature=1.0, top_p=0.6), logits) == pytest.approx(
        [0, 0.625, 0, 0.375, 0], abs=0.03
    )
    assert draws(SamplingParams(temperature=1.0, top_p=0.4), logits).tolist() == [0, 1, 0, 0, 0]
    assert draws(SamplingParams(temperature=0.0), logits, 3).tolist() == [0, 1, 0, 0, 0]


def test_chance_depends_on_seed_text_and_sample_alone(paths: dict[str, str]) -> None:
    generator, choice = (
        TextGenerationPipeline(paths["gpt2"]),
        SamplingParams(temperature=1.0, seed=5),
    )
    found = generator.generate(TEXTS, tokens=6, samples=3, choice=choice)
    assert [len(own) for own in found] == [3] * len(TEXTS)
    assert len({one.ids for own in found for one in own}) > 6
    assert generator.generate(TEXTS[1:2], tokens=6, samples=2, choice=choice)[0] == found[1][:2]
    assert (
        generator.generate(
            TEXTS, tokens=6, samples=3, choice=SamplingParams(temperature=1.0, seed=6)
        )
        != found
    )


def test_what_chance_was_asked_for() -> None:
    def choice(**options: Any) -> SamplingParams:
        return sampling_params(
            parse_config(GenerateConfig, {"requests": [{"text": "a"}], **options}, "generate")
        )

    assert choice() == SamplingParams(temperature=0.0)
    assert choice(samples=2) == SamplingParams(temperature=1.0)
    assert choice(top_p=0.9, temperature=0.7, seed=3) == SamplingParams(
        temperature=0.7, top_p=0.9, seed=3
    )
    with pytest.raises(
        UsageError, match=r"samples \(2\) draws by chance, temperature \(0\) takes the likeliest"
    ):
        choice(samples=2, temperature=0.0)


def test_what_cannot_go_on_is_told_in_one_sentence(paths: dict[str, str], tmp_path: Path) -> None:
    generator = TextGenerationPipeline(paths["gpt2"])
    for text in ("", "  "):
        with pytest.raises(UsageError, match="has no words in it; begin it with a word"):
            generator.question(text)
    with pytest.raises(UsageError, match=r"has 31 pieces, the model reads 32 with those it writes"):
        generator.question("the " * 31)
    ((one,),) = generator.generate(["the " * 30], tokens=9)
    assert len(one.ids) <= 1
    masked = write_checkpoint(tmp_path / "bert", tmp_path / "scratch")
    with pytest.raises(
        UsageError, match="fills masks and does not read from left to right; use `cloze fill-mask`"
    ):
        TextGenerationPipeline(masked)
    with pytest.raises(UsageError, match="has no lm head"):
        TextGenerationPipeline(write_classifier(tmp_path / "sst2", tmp_path / "scratch-2"))
    with pytest.raises(UsageError, match="use `cloze generate`"):
        FillMaskPipeline(paths["gpt2"])
