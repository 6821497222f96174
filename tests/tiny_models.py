"""Models, batches, tokenizers and checkpoints small enough to make anew in every test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cloze.model import checkpoint
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import new_model
from cloze.model.families.pretraining import PretrainingModel
from cloze.model.families.registry import FAMILIES, parse_model
from cloze.pipeline import tokenizer
from cloze.pipeline.dataset.schema import DatasetInfo

WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "sat",
    "on",
    "mat",
    "ran",
    "in",
    "park",
    "##s",
    "##ing",
    "##ed",
    "walk",
    "paris",
    "capital",
    "of",
    "is",
    ".",
]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *"bcdefghijklmnopqrstuvwxyz"]


# What the common tiny sizes do not show of a family, the first also being what `tiny_config` gives.
# Every family of the table is tested without a line here; a line is for what its tests would
# otherwise pass by.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "roberta": [{}, {"pad_token_id": 3, "layer_norm_eps": 1e-5}],
    "albert": [
        {"embedding_size": 8},
        {"embedding_size": 8, "num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2},
    ],
    "electra": [{"embedding_size": 8}, {"embedding_size": 16, "generator_size": 0.5}],
    "modern": [{"local_attention": 4}, {"local_attention": 4, "num_hidden_layers": 4}],
    # buckets that rows of up to 32 tokens do not fit into
    "deberta": [
        {"position_buckets": 8},
        {
            "position_buckets": -1,
            "max_relative_positions": 5,
            "share_att_key": False,
            "norm_rel_ebd": "none",
            "type_vocab_size": 2,
        },
        {
            "pos_att_type": ["c2p"],
            "position_buckets": 8,
            "conv_kernel_size": 3,
            "conv_act": "gelu",
            "position_biased_input": True,
        },
        {
            "pos_att_type": ["p2c"],
            "share_att_key": False,
            "position_buckets": 6,
            "enhanced_mask_decoder": True,
        },
        {
            "pretraining": "rtd",
            "enhanced_mask_decoder": True,
            "position_buckets": 8,
            "num_hidden_layers": 3,
        },
    ],
    "transformer": [{"label_smoothing": 0.0}, {}],
    "bart": [{"eos_token_id": 3, "bos_token_id": 2}, {"num_decoder_layers": 1, "pad_token_id": 1}],
    # version 1.1, with heads that are wider than D / N and a shorter decoder
    "t5": [
        {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12},
        {
            "gated_feed_forward": True,
            "hidden_act": "gelu_new",
            "tie_word_embeddings": False,
            "attention_head_size": 6,
            "num_decoder_layers": 3,
        },
    ],
    "elmo": [{"filters": [[1, 4], [3, 6]], "highway_layers": 1}],
    "static": [{"num_hidden_layers": 0}],
    "longformer": [{"attention_window": 8}, {"attention_window": [4, 8], "pad_token_id": 3}],
}


# Families with attention over masked or running text, segments and layouts of any kind: those that
# Hugging Face has. Tests of these things are for them; tests of trainings, tasks and checkpoints
# for all.
TRANSFORMERS = sorted(set(FAMILIES) - {"elmo", "static", "modern-values"})


def variants(family: str) -> list[dict[str, Any]]:
    """Changes of the common tiny sizes that together show what the family is about; at least one,
    which may be empty.
    """
    return VARIANTS.get(family, [{}])


def tiny_config(family: str = "bert", **changes: Any) -> ModelConfig:
    """Two layers of 16 with 4 heads, without dropout, for the vocabulary `PIECES`, and the family's
    first variant.
    """
    values: dict[str, Any] = {
        "vocab_size": len(PIECES),
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 24,
        "max_position_embeddings": 32,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "initializer_range": 0.3,  # large, so that logits differ
    }
    return parse_model({**values, "family": family, **variants(family)[0], **changes})


def tiny_model(seed: int = 0, **changes: Any) -> PretrainingModel:
    """Random weights in every parameter: biases and norms too, or a test could not tell whether
    they are used.
    """
    torch.manual_seed(seed)
    model = new_model(tiny_config(**changes))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def tiny_batch(
    rows: int = 4, length: int = 12, seed: int = 0, vocab_size: int = len(PIECES)
) -> dict[str, Tensor]:
    """Rows of several lengths with two segments, some masked positions, and pair labels of which
    one is missing.
    """
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(4, length + 1, (rows,), generator=generator)
    lengths[0] = length
    real = torch.arange(length) < lengths[:, None]
    ids = torch.randint(5, vocab_size, (rows, length), generator=generator).where(
        real, torch.tensor(0)
    )
    masked = (torch.rand(rows, length, generator=generator) < 0.3) & real
    masked[:, 1] = True
    pairs = torch.randint(0, 2, (rows,), generator=generator)
    if rows > 1:
        pairs[-1] = -100
    return {
        "input_ids": ids,
        "attention_mask": real,
        "token_type_ids": ((torch.arange(length) >= lengths[:, None] // 2) & real).long(),
        "masked_positions": masked.flatten().nonzero().squeeze(1),
        "masked_labels": torch.randint(5, vocab_size, (int(masked.sum()),), generator=generator),
        "pair_labels": pairs,
    }


def write_tokenizer(directory: Path) -> str:
    """A lowercasing WordPiece tokenizer of `PIECES`, saved as a dataset saves it."""
    directory.mkdir(parents=True, exist_ok=True)
    vocabulary = directory / "source-vocab.txt"
    vocabulary.write_text("".join(f"{piece}\n" for piece in PIECES), encoding="utf-8")
    tokenizer.load(str(vocabulary)).save(str(directory / "tokenizer"))
    return str(directory / "tokenizer")


def dataset_info(pieces: str, **changes: Any) -> DatasetInfo:
    """What a BERT dataset made with the tokenizer at `pieces` says of itself."""
    found = tokenizer.load(pieces)
    values: dict[str, Any] = {
        "recipe": "bert",
        "length": 16,
        "copies": 2,
        "vocab_size": found.vocab_size,
        "special": found.special,
        "pair_task": "nsp",
        "seed": 7,
        "tokenizer": found.fingerprint,
    }
    return DatasetInfo(**{**values, **changes})


def write_checkpoint(
    directory: Path, scratch: Path, *, step: int = 5, seed: int = 0, **changes: Any
) -> str:
    """A complete pretraining checkpoint of random weights."""
    pieces = write_tokenizer(scratch)
    model = tiny_model(seed, **changes)
    checkpoint.save_weights(
        str(directory),
        model=tiny_config(**changes),
        state=model.state_dict(),
        tokenizer=pieces,
        heads=tiny_config(**changes).heads,
        dataset=dataset_info(pieces),
        step=step,
    )
    checkpoint.finalize(str(directory))
    return str(directory)


def write_classifier(
    directory: Path, scratch: Path, labels: tuple[str, ...] = ("negative", "positive")
) -> str:
    """A complete fine-tuned checkpoint of random weights."""
    pieces = write_tokenizer(scratch)
    backbone = {
        name: tensor
        for name, tensor in tiny_model().state_dict().items()
        if name.startswith(("encoder.", "pooler."))
    }
    head = {
        "classifier.weight": torch.randn(len(labels), 16),
        "classifier.bias": torch.randn(len(labels)),
    }
    checkpoint.save_weights(
        str(directory),
        model=tiny_config(),
        state={**backbone, **head},
        tokenizer=pieces,
        heads={"classifier": {"num_labels": len(labels)}},
        task={"name": "sst2", "labels": list(labels), "max_length": 16},
        dataset=dataset_info(pieces),
        step=9,
    )
    checkpoint.finalize(str(directory))
    return str(directory)
