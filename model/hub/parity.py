"""Logit parity between transformers and Cloze, checked at every export and import."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from cloze.core import storage
from cloze.core.errors import ClozeError, DataError
from cloze.model.checkpoint import CONFIG, LoadedCheckpoint
from cloze.model.families.hub_format import EMBEDDING, POOLED, task_head
from cloze.model.families.hub_formats import hub_of
from cloze.model.families.models import Transform, load_backbone, load_model
from cloze.model.families.pretraining import encode
from cloze.model.layers.layout import BatchLayout
from cloze.pipeline import tokenizer

TOLERANCE = 1e-5  # relative to the largest logit, or to 1 if all are smaller: fp32 has 7 digits
ROUNDING = 3.0  # times transformers' own distance from fp64, which sharp attention can make larger
MOST_ROUNDING = 1e-2  # a larger distance is no rounding
STATES = "hidden"  # name of the encoder's, or the decoder's, last states among the logits
PAIR = ("The first text.", "And another.")
LENGTHS = (64, 37, 11, 3)  # tokens of the compared rows, limited to the model's maximum


# head -> its output here, and its parameters; transformers calls that of a class's only head
# `logits`, here the first one's
HEADS: dict[str, tuple[str, tuple[str, ...]]] = {
    "discriminator": ("rtd_logits", ("discriminator.",)),
    "masked_lm": ("mlm_logits", ("masked_lm.",)),
    "pair": ("pair_logits", ("pair.", "pooler.")),
    "lm": ("lm_logits", ("lm.",)),
    "seq2seq": ("seq2seq_logits", ("encoder.output.",)),
}
PARAMETERS = dict(HEADS.values())
OUTPUT_MATRICES = ("masked_lm.", "lm.", "encoder.output.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Largest difference of two sets of states and logits.

    Attributes:
        relative: divided by the largest value of the output, or by 1.
        compared: names of the compared outputs.
    """

    absolute: float
    relative: float
    compared: tuple[str, ...] = ()


def not_compared(directory: str) -> str:
    """Return why logits are not compared with those from `directory`; empty if they are."""
    if find_spec("transformers") is None:
        return "transformers is not installed; run `pip install transformers`"
    return "" if storage.is_local(directory) else "the directory is not on a local disk"


def compare_with_transformers(loaded: LoadedCheckpoint, directory: str) -> Difference | None:
    """Compare states and logits from `directory` with those of `loaded`, in fp32 on the CPU.

    Heads that were never trained, or that transformers' class does not find, are not compared.

    Returns:
        The difference; None if they are `not_compared`, or transformers lacks the embeddings.

    Raises:
        ClozeError: the difference is above the tolerance, and above what transformers' own
            rounding explains.
    """
    if not_compared(directory):
        return None
    batch = probe(loaded)
    cloze_logits = our_logits(loaded, batch)
    hub_logits = transformers_logits(directory, loaded, batch)
    if not hub_logits:
        return None
    difference = largest_difference(cloze_logits, hub_logits)
    if not difference.relative <= TOLERANCE:
        exact = transformers_logits(directory, loaded, batch, torch.float64)
        ours, theirs = (largest_difference(exact, logits) for logits in (cloze_logits, hub_logits))
        if not ours.relative <= ROUNDING * min(MOST_ROUNDING, theirs.relative):
            raise ClozeError(
                f"{directory} gives logits that differ by {difference.absolute:.2e} from the "
                f"checkpoint's; please report this"
            )
    return difference


def exported_heads(loaded: LoadedCheckpoint) -> Mapping[str, Any]:
    """Return the heads that were trained; all, if transformers has no class of exactly these."""
    hub, trained = hub_of(loaded.model.family, loaded.heads), loaded.trained_heads
    return trained if hub.has_class(trained) else loaded.heads


def output_names(heads: Iterable[str]) -> dict[str, str]:
    """Return the outputs of transformers' class with these heads, Hugging Face -> Cloze."""
    only = [output for head, (output, _) in HEADS.items() if head in heads]
    return {
        "last_hidden_state": STATES,
        "prediction_logits": "mlm_logits",
        "seq_relationship_logits": "pair_logits",
        "sop_logits": "pair_logits",
        **({"logits": only[0]} if only else {}),
    }


def largest_difference(
    expected: Mapping[str, Tensor], computed: Mapping[str, Tensor]
) -> Difference:
    """Compare outputs by name; `computed` may lack some of the expected ones."""
    pairs = [(expected[name], computed[name]) for name in computed if name in expected]
    differences = [float((one - other).abs().max()) for one, other in pairs]
    largest = [max(1.0, float(one.abs().max())) for one, _ in pairs]
    # numpy's maximum of numbers with a NaN is NaN, Python's is not.
    return Difference(
        absolute=float(np.max(differences)),
        relative=float(np.max(np.divide(differences, largest))),
        compared=tuple(name for name in computed if name in expected),
    )


def probe(loaded: LoadedCheckpoint, row_lengths: Sequence[int] = LENGTHS) -> dict[str, Tensor]:
    """Return a padded batch of random ids: several lengths, two segments, all tokens predicted.

    The family's `HubFormat.probe` adapts the rows, and may leave some out.
    """
    model = loaded.model
    lengths = torch.tensor([min(length, model.max_position_embeddings) for length in row_lengths])
    generator = torch.Generator().manual_seed(0)
    longest = int(lengths.max())
    real = torch.arange(longest) < lengths[:, None]
    ids = torch.randint(model.vocab_size, real.shape, generator=generator)
    pad = torch.tensor(model.pad_token_id)
    # Some families detect padding by its id.
    ids = ids.where(ids != pad, (pad + 1) % model.vocab_size).where(real, pad)
    in_second_half = real & (torch.arange(longest) >= lengths[:, None] // 2)
    batch = {
        "input_ids": ids,
        "attention_mask": real,
        "token_type_ids": in_second_half.long() * (model.type_vocab_size > 1),
    }
    batch = hub_of(model.family).probe(model, loaded.heads, loaded.tokenizer, batch)
    return {**batch, "masked_positions": batch["attention_mask"].flatten().nonzero().squeeze(1)}


def check_pair(loaded: LoadedCheckpoint, directory: str) -> None:
    """Check that transformers' tokenizer frames a pair of texts as the model was trained.

    Raises:
        ClozeError: it gives other tokens, or token types that the model does not have.
    """
    import transformers

    pieces = tokenizer.load(loaded.tokenizer)
    first, second = pieces.encode_batch(PAIR)
    special, separator = pieces.special, pieces.pair_frame.separator
    expected = [*special.begins, *first, *separator, *second, special.sep]
    if special.sep == special.pad:  # GPT-2 leaves ends of texts to its users
        expected = [*first, *second]
    encoded = transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True)(*PAIR)
    found, types = list(encoded["input_ids"]), max(encoded.get("token_type_ids", [0]))
    if found != expected or types >= max(1, loaded.model.type_vocab_size):
        raise ClozeError(
            f"{directory} makes the tokens {found} of types up to {types} from the pair {PAIR}; "
            f"the model has {loaded.model.type_vocab_size} types and learned from {expected}; "
            f"please report this"
        )


@torch.inference_mode()
def our_logits(loaded: LoadedCheckpoint, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the checkpoint's last states and logits at real tokens by output name.

    A fine-tuned checkpoint gives those of its head.
    """
    head = _head(loaded.heads)
    if head is not None:
        backbone = load_backbone(loaded.model, loaded.state)
        states = encode(backbone.encoder, batch["input_ids"], batch)
        outputs = {STATES: states}
        if head == EMBEDDING:
            return {STATES: _real(states, batch)}
        if head in POOLED:
            states = backbone.pooler(states, batch["attention_mask"])
        elif backbone.transforms:
            states = cast(Transform, backbone.pooler).transform(states)
        outputs[head] = functional.linear(
            states, loaded.state[f"{head}.weight"], loaded.state.get(f"{head}.bias")
        )
        return {name: _real(output, batch) for name, output in outputs.items()}
    hub = hub_of(loaded.model.family, loaded.heads)
    real, layout = batch["attention_mask"], None
    if hub.is_causal:
        rows, length = real.shape
        layout = BatchLayout((rows, length), real, causal=torch.ones(rows, dtype=torch.bool))
    found = load_model(loaded.model, loaded.state)({**batch, "layout": layout})
    return {
        name: _real(found[name], batch) for name in sorted({STATES, *PARAMETERS} & found.keys())
    }


@torch.inference_mode()
def transformers_logits(
    directory: str,
    loaded: LoadedCheckpoint,
    batch: Mapping[str, Tensor],
    dtype: torch.dtype = torch.float32,
) -> dict[str, Tensor]:
    """Compute states and logits from `directory` with the class of transformers that has all heads.

    Returns:
        Outputs in the form of `our_logits`, without those of heads with random weights.
    """
    hub = hub_of(loaded.model.family, loaded.heads)
    config = storage.read_json(storage.join(directory, CONFIG))
    heads = exported_heads(loaded)
    name = hub.architecture(heads, str(config["model_type"]))
    model, missing = hub_model(directory, name, dtype=dtype)
    states: list[Tensor] = []
    base = model.base_model
    base = getattr(model, "decoder", model) if base is model else base  # T5 has no base inside
    start = getattr(model.config, "decoder_start_token_id", None)
    hook = base.register_forward_hook(lambda module, inputs, output: states.append(output[0]))
    try:
        outputs = model(**hub_inputs(loaded, batch, start))
    finally:
        hook.remove()
    named = named_logits(outputs, batch, heads)
    if states[0].shape[:2] == batch["input_ids"].shape:  # a choice's are flat
        named[STATES] = _real(states[0], batch)
    made = [f"{module}." for module in loaded.untrained]
    for parameter in map(hub.current_name, missing):
        made += [hub.keys.from_hf(parameter) or ""]
        drop = hub.drop_of(parameter, loaded.model)
        if drop is not None and drop.copy_of:  # untied by the config, and not in the file
            made += OUTPUT_MATRICES
        embeds = parameter.endswith(".embed_tokens.weight")
        if embeds or (made[-1].startswith("encoder.") and not made[-1].startswith(OUTPUT_MATRICES)):
            return {}  # transformers' own are random
    return {
        name: logits
        for name, logits in named.items()
        if not any(parameter.startswith(PARAMETERS.get(name, ())) for parameter in made)
    }


def hub_model(
    directory: str, architecture: str, dtype: torch.dtype = torch.float32, **options: str
) -> tuple[Any, set[str]]:
    """Load a directory with a class of transformers, in evaluation mode.

    Returns:
        The model, and the names of its weights that the directory lacks.

    Raises:
        DataError: transformers does not open the directory.
    """
    import transformers

    verbosity = transformers.logging.get_verbosity()
    bars = transformers.logging.is_progress_bar_enabled()
    transformers.logging.set_verbosity_error()  # what is missing is in the stage's summary
    transformers.logging.disable_progress_bar()
    try:
        model, found = getattr(transformers, architecture).from_pretrained(
            directory, local_files_only=True, dtype=dtype, output_loading_info=True, **options
        )
    except Exception as error:  # its configs, quantizers and readers raise many types
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"{directory} is refused by {architecture} of transformers ({reason}); correct its "
            f"{CONFIG}, or use another model"
        ) from error
    finally:
        transformers.logging.set_verbosity(verbosity)
        if bars:
            transformers.logging.enable_progress_bar()
    return model.eval(), set(found["missing_keys"])


def hub_inputs(
    loaded: LoadedCheckpoint, batch: Mapping[str, Tensor], start: int | None = None
) -> dict[str, Tensor]:
    """Return the inputs that transformers' tokenizer makes, int64 [B, L].

    For a choice [1, B, L]: one example, and every row is a choice.

    Args:
        start: token with which transformers' decoder starts. Default: the checkpoint's.
    """
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"].long()}
    if loaded.model.type_vocab_size > 1:
        inputs["token_type_ids"] = batch["token_type_ids"]
    if loaded.model.is_encoder_decoder and _head(loaded.heads) is None:
        start = loaded.model.start_token_id if start is None else start
        ids = batch["input_ids"]
        inputs["decoder_input_ids"] = functional.pad(ids[:, :-1], (1, 0), value=start)
    choice = _head(loaded.heads) == "choice"
    return {name: tensor[None] if choice else tensor for name, tensor in inputs.items()}


def named_logits(
    outputs: Mapping[str, Tensor], batch: Mapping[str, Tensor], heads: Mapping[str, object]
) -> dict[str, Tensor]:
    """Return the outputs of transformers' model in the form of `our_logits`."""
    head = _head(heads)
    if head == "choice":
        return {head: outputs["logits"].transpose(0, 1)}
    if head == EMBEDDING:
        return {STATES: _real(outputs["last_hidden_state"], batch)}
    if head == "span":
        ends = [outputs["start_logits"], outputs["end_logits"]]
        return {head: _real(torch.stack(ends, dim=-1), batch)}
    if head is not None:
        return {head: _real(outputs["logits"], batch)}
    return {
        cloze_name: _real(outputs[hub_name], batch)
        for hub_name, cloze_name in output_names(heads).items()
        if hub_name in outputs
    }


def _head(heads: Mapping[str, object]) -> str | None:
    return EMBEDDING if EMBEDDING in heads else task_head(heads)


def _real(logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """Select the real tokens if `logits` has every position; return others unchanged."""
    if logits.shape[:2] != batch["input_ids"].shape:
        return logits
    return logits.flatten(0, 1)[batch["masked_positions"]]
