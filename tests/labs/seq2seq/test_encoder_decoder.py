"""Encoder-decoders: what may influence what, the search for outputs and the smoothed loss, compared
with transformers where it has the same.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from cloze.core.errors import UsageError
from cloze.labs.seq2seq.decoder import BeamSearch, generate
from cloze.labs.seq2seq.denoising import target_loss
from cloze.labs.seq2seq.text_to_text_task import cut
from cloze.model.families.registry import model_config
from cloze.model.layers.cross_entropy import enable_lazy_logits
from cloze.model.objectives import choose, objectives
from tests.model.scores import score
from tests.parity.families import Case, case_id
from tests.slices import few
from tests.tiny_models import dataset_info, tiny_batch, tiny_config, tiny_model, write_tokenizer

FAMILIES = ["t5", "bart", "transformer"]
each = pytest.mark.parametrize("family", FAMILIES)


def batch_with_target(seed: int = 0) -> dict[str, torch.Tensor]:
    batch = tiny_batch(rows=3, length=12, seed=seed)
    target = torch.tensor([[7, 8, 9, 3, -100], [12, 3, -100, -100, -100], [5, 6, 7, 8, 3]])
    return {**batch, "target_labels": target}


@each
def test_the_decoder_sees_the_source_and_no_later_token(family: str) -> None:
    model, batch = tiny_model(family=family), batch_with_target()
    before = model(batch)["seq2seq_logits"]
    later = batch["target_labels"].clone()
    later[0, 2] = 20
    after = model({**batch, "target_labels": later})["seq2seq_logits"]
    torch.testing.assert_close(after[0, :3], before[0, :3])
    assert not torch.allclose(after[0, 3], before[0, 3], atol=1e-4)
    source = batch["input_ids"].clone()
    source[0, -1] = 5 + (source[0, -1] - 4) % 20
    changed = model({**batch, "input_ids": source})["seq2seq_logits"]
    assert not torch.allclose(changed[0, 0], before[0, 0], atol=1e-4)
    padding = batch["input_ids"].masked_fill(~batch["attention_mask"], 11)
    unchanged = model({**batch, "input_ids": padding})["seq2seq_logits"]
    torch.testing.assert_close(unchanged, before)


@each
def test_the_loss_is_transformers(family: str) -> None:
    case = Case(family=family, changes={"label_smoothing": 0.0})
    theirs = case.theirs()
    ours, batch = case.ours(theirs), batch_with_target()
    expected = theirs(
        input_ids=batch["input_ids"],
        attention_mask=batch["attention_mask"].long(),
        labels=batch["target_labels"],
    ).loss
    (objective,) = objectives(("bert-style",))
    found = score(objective, ours(batch), batch)
    torch.testing.assert_close(found.total / found.count, expected, atol=1e-5, rtol=0.0)
    assert int(found.count) == int(objective.targets(batch).sum()) == 11


@pytest.mark.parametrize("lazy", [False, True])
def test_label_smoothing_is_torch_s(lazy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = tiny_model(family="t5", label_smoothing=0.1).train(), batch_with_target()
    logits = model(batch)["seq2seq_logits"].flatten(0, 1)
    labels = batch["target_labels"].flatten()
    expected = cross_entropy(logits, labels, label_smoothing=0.1, reduction="sum")
    if lazy:
        from cloze.model.layers import cross_entropy as chunks

        monkeypatch.setattr(chunks, "chunks_logits", lambda *_: True)
        enable_lazy_logits(model)
    outputs = model(batch)
    assert isinstance(outputs["seq2seq_logits"], torch.Tensor) != lazy
    found, _ = target_loss(
        outputs["seq2seq_logits"], batch["target_labels"], outputs["label_smoothing"]
    )
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)
    assert "label_smoothing" not in model.eval()(batch)


CASES = [
    Case(family=family, changes={"initializer_range": deviation})
    for family in FAMILIES
    for deviation in (0.1, 0.4)
]


@pytest.mark.parametrize("case", CASES, ids=case_id)
@pytest.mark.parametrize(("beams", "penalty"), few([(1, 1.0), (4, 0.0), (3, 1.0), (3, 2.0)], 1, 4))
def test_beams_find_what_transformers_finds(case: Case, beams: int, penalty: float) -> None:
    """Which also shows that kept keys and values change nothing."""
    theirs = case.theirs(seed=beams)
    ours, batch = case.ours(theirs), batch_with_target(seed=3)
    config: Any = case.config
    theirs.generation_config.forced_bos_token_id = None
    theirs.generation_config.forced_eos_token_id = None
    expected = theirs.generate(
        input_ids=batch["input_ids"],
        attention_mask=batch["attention_mask"].long(),
        num_beams=beams,
        length_penalty=penalty,
        max_new_tokens=9,
        do_sample=False,
        early_stopping=False,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
        bad_words_ids=[[config.pad_token_id]],
    )[:, 1:]
    memory = ours.encoder.memory_of(batch["input_ids"], batch["attention_mask"])
    search = BeamSearch(beams=beams, length_penalty=penalty, tokens=9)
    ours.encoder.ids = ours.encoder.ids._replace(first=None)
    found = generate(ours.encoder, memory, search)
    end = config.eos_token_id  # transformers fills rows that ended with it
    assert [cut(row, end) for row in found] == [cut(row, end) for row in expected]


def test_a_given_first_token_is_read_and_not_returned() -> None:
    model, batch = tiny_model(family="bart"), batch_with_target()
    memory = model.encoder.memory_of(batch["input_ids"], batch["attention_mask"])
    assert model.encoder.ids == (3, 3, 0, 2)
    written = generate(model.encoder, memory, BeamSearch(tokens=4))
    first = torch.full((3, 1), 2)
    for length in range(1, written.shape[1] + 1):
        targets = torch.cat([first, written[:, :length]], dim=1)
        logits = model.encoder.logits(model.encoder.decode(memory, targets))[:, -1].clone()
        logits[:, [0, 2]] = -torch.inf
        ended = (written[:, : length - 1] == 3).any(dim=1)
        best = logits.argmax(dim=-1)
        assert bool(((best == written[:, length - 1]) | ended).all())


def test_objectives_that_do_not_fit_are_refused(tmp_path: Any) -> None:
    info = dataset_info(write_tokenizer(tmp_path), pair_task=None)
    config = tiny_config(family="t5")
    assert choose(config, info) == ("random-spans",)
    assert choose(tiny_config(family="bart"), info) == ("bart",)
    with pytest.raises(UsageError, match=r"objective \(mlm\) needs a masked_lm head"):
        choose(config, info, ["mlm"])
    with pytest.raises(UsageError, match=r"objective \(random-spans\) needs a seq2seq head"):
        choose(tiny_config(), info, ["random-spans"])
    with pytest.raises(UsageError, match=r"objective \(prefix-lm\) is used alone"):
        choose(config, info, ["prefix-lm", "deshuffling"])
    packed = dataset_info(write_tokenizer(tmp_path), pair_task=None, packed=True)
    with pytest.raises(UsageError, match="on rows of one text each"):
        choose(config, packed)


def test_heads_of_any_width_may_be_named() -> None:
    assert model_config("t5-v1.1-small").head_size == 64
    with pytest.raises(UsageError, match=r"set attention_head_size, or change the heads"):
        model_config("t5-small", num_attention_heads=6)
