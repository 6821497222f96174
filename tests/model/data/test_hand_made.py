"""One batch that a person can read: what the dataset says is what the model is given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from cloze.model.data.batch import collate
from cloze.model.data.shards import ShardedRows
from cloze.model.families.models import new_model
from cloze.pipeline.dataset.schema import DatasetInfo, dataset_schema
from cloze.pipeline.tokenizer.special import SpecialTokens
from tests.tiny_models import tiny_config

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "it",
    "was",
    "red",
    "dogs",
    "bark",
]
NUMBER = {word: number for number, word in enumerate(WORDS)}


def ids(text: str) -> list[int]:
    return [NUMBER[word] for word in text.split()]


ROWS = [
    {
        "input_ids": ids("[CLS] the cat sat [SEP] on a mat [SEP]"),
        "segment_start": 5,
        "pair_label": 0,
        "masks": [
            {"positions": [2, 6], "input_ids": ids("[MASK] dogs")},
            {"positions": [1, 3, 7], "input_ids": ids("[MASK] sat [MASK]")},
        ],
        "source": {"document": 7, "offset": 0},
    },
    {
        "input_ids": ids("[CLS] it was red [SEP] dogs bark [SEP]"),
        "segment_start": 5,
        "pair_label": 1,
        "masks": [
            {"positions": [5], "input_ids": ids("dogs")},
            {"positions": [3], "input_ids": ids("[MASK]")},
        ],
        "source": {"document": 9, "offset": 3},
    },
    {
        "input_ids": ids("[CLS] the mat [SEP]"),
        "segment_start": 4,
        "pair_label": None,
        "masks": [
            {"positions": [1], "input_ids": ids("[MASK]")},
            {"positions": [2], "input_ids": ids("[MASK]")},
        ],
        "source": {"document": 9, "offset": 5},
    },
]


def test_the_model_is_given_what_the_dataset_says(tmp_path: Path) -> None:
    special = SpecialTokens(pad=0, unk=1, cls=2, sep=3, mask=4)
    info = DatasetInfo(
        recipe="bert",
        length=16,
        copies=2,
        vocab_size=16,
        special=special,
        pair_task="nsp",
        seed=0,
        tokenizer="0" * 64,
    )
    schema = dataset_schema(info, np.dtype(np.uint16))
    with pa.ipc.new_file(str(tmp_path / "train-00000-of-00001.arrow"), schema) as writer:
        writer.write_table(pa.Table.from_pylist(ROWS, schema=schema))
    batch = collate(
        ShardedRows(str(tmp_path)).take(np.array([0, 1, 2]), np.array([1, 0, 0])), pad=0, longest=16
    )

    pad = " [PAD]"
    assert [" ".join(WORDS[token] for token in row) for row in batch["input_ids"].tolist()] == [
        "[CLS] [MASK] cat sat [SEP] on a [MASK] [SEP]" + 7 * pad,
        "[CLS] it was red [SEP] dogs bark [SEP]" + 8 * pad,
        "[CLS] [MASK] mat [SEP]" + 12 * pad,
    ]
    assert batch["token_type_ids"].tolist() == [
        [0, 0, 0, 0, 0, 1, 1, 1, 1] + [0] * 7,
        [0, 0, 0, 0, 0, 1, 1, 1] + [0] * 8,
        [0] * 16,
    ]
    assert batch["attention_mask"].sum(dim=1).tolist() == [9, 8, 4]
    assert batch["pair_labels"].tolist() == [0, 1, -100]
    real = batch["masked_labels"] != -100
    assert batch["masked_positions"][real].tolist() == [1, 3, 7, 16 + 5, 32 + 1]
    assert [WORDS[token] for token in batch["masked_labels"][real].tolist()] == [
        "the",
        "sat",
        "mat",
        "dogs",
        "the",
    ]

    model = new_model(tiny_config(vocab_size=16))
    seen: list[tuple[torch.Tensor, ...]] = []
    model.encoder.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[:3]))
    logits = model(batch)["mlm_logits"]
    assert seen[0][0].equal(batch["input_ids"])
    assert seen[0][1].equal(batch["attention_mask"])
    assert seen[0][2].equal(batch["token_type_ids"])
    assert logits.shape == (len(batch["masked_labels"]), 16)
