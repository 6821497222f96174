"""Rows of every kind of task are framed as the vocabulary frames texts: BERT's with [CLS] and
[SEP], T5's with an end alone, GPT-2's with its end of a text on both sides.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cloze.labs.relations.relation import MARKS
from cloze.model.tasks.encode import encode, encode_words
from cloze.model.tasks.formats.squad import Answer, SquadExamples
from cloze.model.tasks.formats.texts import LabelledTexts
from cloze.model.tasks.options import SpanOptions
from cloze.model.tasks.span_windows import BOUNDS, STARTS, encode_questions
from cloze.model.tasks.table import load_task
from cloze.pipeline import tokenizer
from cloze.pipeline.tokenizer.tokenizer import Tokenizer
from tests.pipeline.tokenizer.texts import trained_spiece
from tests.tiny_models import write_tokenizer

SENTENCE = "the cat sat on the mat"


@pytest.fixture(scope="module", params=["bert", "t5", "gpt2"])
def framing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp(request.param)
    if request.param == "bert":
        return tokenizer.load(write_tokenizer(path / "pieces"))
    if request.param == "t5":
        ids = {"unk_id": 2, "eos_id": 1, "control_symbols": [], "user_defined_symbols": []}
        trained_spiece(path, vocab_size=150, **ids)
        (path / "config.json").write_text('{"model_type": "t5"}')
        return tokenizer.load(str(path))
    return gpt2_pieces(path)


def gpt2_pieces(path: Path) -> Tokenizer:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: number for number, piece in enumerate([*letters, "<|endoftext|>"])}
    backend = Backend(models.BPE(vocab, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>"])
    backend.save(str(path / "tokenizer.json"))
    return tokenizer.load(str(path))


def test_texts_words_and_questions_begin_alike(framing: Tokenizer) -> None:
    special, begins = framing.special, list(framing.special.begins)
    words = SENTENCE.split()
    inside = framing.encode_batch([SENTENCE])[0]
    one = encode([SENTENCE], None, framing, 64)
    assert one.sequences[0].tolist() == [*begins, *inside, special.sep]
    tagged = encode_words([words], framing, 64)
    assert tagged.sequences[0].tolist() == one.sequences[0].tolist()
    begin = tagged.first[0]
    pieces = [framing.encode_batch([f" {word}" if i else word])[0] for i, word in enumerate(words)]
    assert [tagged.sequences[0][at] for at in begin] == [own[0] for own in pieces]
    examples = SquadExamples(
        ids=("1",),
        questions=("the cat",),
        passages=(SENTENCE,),
        passage_of=(0,),
        answers=((Answer(text="mat", start=SENTENCE.index("mat")),),),
    )
    asked = encode_questions(examples, framing, 64, SpanOptions())
    question = framing.encode_batch(["the cat"])[0]
    pair = encode(["the cat"], [SENTENCE], framing, 64)
    assert asked.sequences[0].tolist() == pair.sequences[0].tolist()
    assert asked.second[0] == len([*begins, *question, *framing.pair_frame.separator])
    _, offsets = framing.encode_with_offsets([SENTENCE])[0]
    at = int(asked.targets[STARTS][0])
    assert asked.targets[BOUNDS][0][0] == asked.second[0]
    assert offsets[at - asked.second[0]][0] == SENTENCE.index("mat")


@pytest.mark.parametrize("longest", [8, 9, 12])
def test_rows_use_all_of_their_length(framing: Tokenizer, longest: int) -> None:
    text = "cat " * 60
    pairs = encode([text, "cat"], [text, text], framing, longest)
    assert set(pairs.lengths) == {longest}
    assert encode([text], None, framing, longest).lengths == [longest]
    assert max(encode_words([text.split()], framing, longest).lengths) <= longest


@pytest.mark.parametrize("pair", [False, True])
def test_entities_are_read_at_their_markers(framing: Tokenizer, pair: bool) -> None:
    text = "the <e1>cat</e1> sat on the <e2>mat</e2>"
    examples = LabelledTexts(
        texts=("the <e1>cat</e1>",) if pair else (text,),
        text_pairs=("sat on <e2>mat</e2>",) if pair else None,
        labels=None,
        label_names=("none", "other"),
    )
    task = load_task("relation", {"markers": ["cat", "cat", "mat", "mat"]})
    samples = task.encode(examples, framing, 64)
    (row,), (marks,) = samples.sequences, samples.targets[MARKS]
    for mark, marker in zip(marks, ("cat", "mat"), strict=True):
        pieces = framing.encode_batch([marker])[0]
        assert row[mark : mark + len(pieces)].tolist() == pieces
