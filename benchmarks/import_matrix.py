"""Import and export against transformers, of every architecture that both know.

    python -m benchmarks.import_matrix write DIRECTORY           # by any transformers, 4.4x or 5.x
    python -m benchmarks.import_matrix read DIRECTORY ... [--type bert]
        [--form fp32] [--export] [--list]

`write` saves tiny random models of every class of each model type: the encoder, pretraining heads
and task heads; tied and untied; in fp32, bf16, shards and pickles. `expected.safetensors` beside a
directory has the states and logits of its class in fp64. `read` imports each directory and
compares in fp64, then exports it and compares again by transformers. It prints a count of each
outcome and every sentence of a refusal; a wrong result or a traceback ends it with status 1.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

VOCABULARY, LENGTH, PAD, END = 44, 16, 0, 3
BERT = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}
BART = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 32,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "decoder_start_token_id": 3,
    "forced_eos_token_id": 3,
}
T5 = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
T5 |= {"decoder_start_token_id": 0, "eos_token_id": 3}
RELATIVE = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
# model type -> (config's class, beginning of the classes' names, sizes)
TYPES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertConfig", "Bert", BERT),
    "megatron-bert": ("MegatronBertConfig", "MegatronBert", BERT),
    "roberta": ("RobertaConfig", "Roberta", BERT),
    "xlm-roberta": ("XLMRobertaConfig", "XLMRoberta", BERT),
    "camembert": ("CamembertConfig", "Camembert", BERT),
    "albert": ("AlbertConfig", "Albert", {**BERT, "embedding_size": 8}),
    "electra": ("ElectraConfig", "Electra", {**BERT, "embedding_size": 8}),
    "distilbert": (
        "DistilBertConfig",
        "DistilBert",
        {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 24, "max_position_embeddings": 32},
    ),
    "gpt2": ("GPT2Config", "GPT2", {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}),
    "modernbert": ("ModernBertConfig", "ModernBert", BERT),
    "modernbert-decoder": ("ModernBertDecoderConfig", "ModernBertDecoder", BERT),
    "longformer": ("LongformerConfig", "Longformer", {**BERT, "attention_window": 8}),
    "deberta": ("DebertaConfig", "Deberta", {**BERT, **RELATIVE}),
    "deberta-v2": ("DebertaV2Config", "DebertaV2", {**BERT, **RELATIVE}),
    "mpnet": ("MPNetConfig", "MPNet", BERT),
    "t5": ("T5Config", "T5", T5),
    "t5-v1.1": ("T5Config", "T5", {**T5, "feed_forward_proj": "gated-gelu"}),
    "mt5": ("MT5Config", "MT5", T5),
    "bart": ("BartConfig", "Bart", BART),
    "marian": (
        "MarianConfig",
        "Marian",
        {**BART, "decoder_start_token_id": 0, "scale_embedding": True},
    ),
    "xlnet": ("XLNetConfig", "XLNet", {"d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 24}),
}
CLASSES = (
    *("Model", "EncoderModel", "ForPreTraining", "ForMaskedLM", "LMHeadModel", "ForCausalLM"),
    *("ForConditionalGeneration", "MTModel", "DoubleHeadsModel", "ForNextSentencePrediction"),
    *("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"),
    *("ForQuestionAnsweringSimple", "ForMultipleChoice"),
)
READERS = ("EncoderModel", "Classification", "Answering")  # their decoders read the row itself
FORMS = ("fp32", "bf16", "shards", "bin")
OUTPUTS = (
    *("last_hidden_state", "logits", "prediction_logits", "seq_relationship_logits", "sop_logits"),
    *("start_logits", "end_logits"),
)
TOLERANCE = 1e-6  # relative; both sides compute in fp64, but some norms and sines are of fp32


def batch() -> dict[str, Tensor]:
    """Rows of three lengths with one end token each, and tokens above the special ones."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([LENGTH, 9, 5])
    ids = torch.randint(5, VOCABULARY, (3, LENGTH), generator=generator)
    real = torch.arange(LENGTH) < lengths[:, None]
    ids.scatter_(1, lengths[:, None] - 1, END)
    return {"input_ids": ids.where(real, torch.tensor(PAD)), "attention_mask": real.long()}


def inputs_of(model: Any, architecture: str) -> dict[str, Tensor]:
    inputs = batch()
    config = model.config
    if config.is_encoder_decoder and not architecture.endswith(READERS):
        start = config.decoder_start_token_id
        shifted = torch.nn.functional.pad(inputs["input_ids"][:, :-1], (1, 0), value=start)
        inputs["decoder_input_ids"] = shifted
    if architecture.endswith("MultipleChoice"):
        return {name: tensor[None] for name, tensor in inputs.items()}
    return inputs


@torch.no_grad()
def computed(model: Any, architecture: str) -> dict[str, Tensor]:
    """Return states and logits of a class of transformers, fp64, without the padded rows' ends."""
    model.eval()
    states: dict[str, Tensor] = {}

    def keep(module: Any, arguments: Any, output: Any) -> None:
        states["states"] = output[0]

    base = model.base_model
    base = getattr(model, "decoder", model) if base is model else base  # T5 has no base inside
    hook = base.register_forward_hook(keep)
    outputs = model(**inputs_of(model, architecture))
    hook.remove()
    found = {name: outputs[name] for name in OUTPUTS if name in outputs}
    found.pop("last_hidden_state", None)
    return {name: tensor.clone() for name, tensor in {**states, **found}.items()}


def write(directory: Path, types: list[str], forms: Sequence[str] = FORMS) -> None:
    """Save the models of these types, and what they compute."""
    import transformers

    transformers.logging.set_verbosity_error()
    with contextlib.suppress(AttributeError):
        transformers.logging.disable_progress_bar()
    for model_type in types:
        config_name, prefix, sizes = TYPES[model_type]
        config_class = getattr(transformers, config_name, None)
        if config_class is None:
            continue
        for suffix in CLASSES:
            model_class: Any = getattr(transformers, prefix + suffix, None)
            for tied in (True, False) if model_class is not None else ():
                torch.manual_seed(7)
                extra = {} if model_type == "gpt2" else {"pad_token_id": PAD}
                config = config_class(
                    vocab_size=VOCABULARY,
                    tie_word_embeddings=tied,
                    initializer_range=0.3,
                    **{**extra, **sizes},
                )
                config.num_labels = 3 if suffix.endswith("Classification") else 2
                model = model_class(config)
                with torch.no_grad():
                    for parameter in model.parameters():
                        if parameter.ndim == 1:
                            parameter.add_(0.2 * torch.randn_like(parameter))
                for form in forms:
                    if form != "fp32" and not tied:
                        continue
                    name = f"{model_type}+{suffix}+{'tied' if tied else 'untied'}+{form}"
                    try:
                        save(model, directory / name, form, prefix + suffix)
                    except Exception as error:
                        shutil.rmtree(directory / name, ignore_errors=True)
                        print(f"{name}: transformers: {type(error).__name__}: {error}"[:160])


def save(model: Any, path: Path, form: str, architecture: str) -> None:
    model = copy.deepcopy(model)
    whole = copy.deepcopy(model)
    if form == "bf16":
        for (name, parameter), rounded in zip(
            whole.named_parameters(), model.parameters(), strict=True
        ):
            rounded.data = rounded.data.bfloat16()
            if "embed_positions" not in name or "Marian" not in architecture:  # sines, not saved
                parameter.data = rounded.data.float()
    options = {"max_shard_size": "8KB"} if form == "shards" else {}
    model.save_pretrained(str(path), **options)
    if form == "bin":
        torch.save(model.state_dict(), path / "pytorch_model.bin")
        (path / "model.safetensors").unlink()
    try:
        expected = computed(whole.double(), architecture)
    except RuntimeError:  # some classes of 4.46 have no fp64
        expected = computed(whole.float(), architecture)
    save_file(expected, str(path / "expected.safetensors"))


# Reading: by Cloze.


def pieces(path: Path, model_type: str) -> None:
    """Write a tokenizer of the family's frame: BERT's, or T5's without a first token."""
    from cloze.pipeline.tokenizer.backends import bert_backend, roberta_backend, t5_backend
    from cloze.pipeline.tokenizer.tokenizer import Tokenizer

    letters = [chr(number) for number in range(ord("a"), ord("z") + 1)]
    if model_type.startswith(("t5", "mt5")):
        words = [("<pad>", 0.0), ("<unk>", 0.0), ("▁", -2.0), ("</s>", 0.0)]
        made = t5_backend([*words, *((word, -3.0) for word in letters)], 1, None, 2)
    elif model_type == "longformer":
        names = ["<pad>", "<unk>", "<s>", "</s>", "<mask>", *letters]
        made = roberta_backend({name: number for number, name in enumerate(names)}, [])
    else:
        names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]
        made = bert_backend({name: number for number, name in enumerate(names)}, True)
    Tokenizer.of(made, "matrix").save(str(path))


def same(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> tuple[list[str], str]:
    """Return the compared outputs, and the difference of one that is too large."""
    compared, real = [], batch()["attention_mask"].bool()
    for name, tensor in theirs.items():
        if name not in ours:
            continue
        compared.append(name)
        mine, its = ours[name].double(), tensor
        if its.shape[:2] == real.shape and mine.shape[0] == int(real.sum()):
            its = its[real]
        difference = float((mine - its).abs().max()) if mine.shape == its.shape else float("inf")
        tolerance = TOLERANCE if tensor.dtype == torch.float64 else 1e-4
        if not difference <= tolerance * max(1.0, float(its.abs().max())):
            return compared, f"{name} differs by {difference:.1e}"
    return compared, ""


@torch.inference_mode()
def ours(path: str, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a checkpoint's states and logits in fp64, under transformers' names."""
    from cloze.model import checkpoint
    from cloze.model.hub import parity

    loaded = checkpoint.load(path)
    inputs = batch()
    real = inputs["attention_mask"].bool()
    probe = {
        "input_ids": inputs["input_ids"],
        "attention_mask": real,
        "token_type_ids": torch.zeros_like(inputs["input_ids"]),
        "masked_positions": real.flatten().nonzero().squeeze(1),
    }
    torch.set_default_dtype(torch.float64)
    try:
        loaded.state.update({name: part.double() for name, part in loaded.state.items()})
        found = parity.our_logits(loaded, probe)
    finally:
        torch.set_default_dtype(torch.float32)
    named = {"states": found[parity.STATES]}
    for theirs, mine in parity.output_names(loaded.trained_heads).items():
        if mine in found and theirs in expected:
            named[theirs] = found[mine]
    for head in ("classifier", "token_classifier"):
        if head in found:
            named["logits"] = found[head]
    if "choice" in found:
        named["logits"] = found["choice"].transpose(0, 1)
    if "span" in found:
        named["start_logits"], named["end_logits"] = found["span"].unbind(-1)
    return named


def outcome(path: Path, export: bool) -> tuple[str, str]:
    """Import one directory; return the outcome and what is said."""
    from cloze.core.errors import ClozeError, DataError, UsageError
    from cloze.core.stages.execute import execute
    from cloze.model.hub.stages import EXPORT, IMPORT, ExportConfig, ImportConfig

    model_type, _, _, form = path.name.split("+")
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / "hub"
        shutil.copytree(path, directory)
        (directory / "expected.safetensors").unlink()
        pieces(directory, model_type)
        expected = load_file(str(path / "expected.safetensors"))
        out, back = f"{scratch}/out", f"{scratch}/back"
        try:
            config = ImportConfig(trust_pickle=form == "bin")
            inputs = {"directory": str(directory)}
            summary = execute(IMPORT, config, inputs, out).manifest.summary
            compared, fault = same(ours(f"{out}/checkpoint", expected), expected)
            new = ", ".join(summary["initialized"])
            left = ", ".join(summary["left_out"])
            said = IMPORT.headline(summary)
            if fault or "states" not in compared:
                return "wrong", f"{fault or 'no states'} ({said})"
            missing = expected.keys() - set(compared)
            if missing and not left:
                return "wrong", f"silent about {', '.join(sorted(missing))} ({said})"
            if export:
                summary = execute(
                    EXPORT, ExportConfig(), {"checkpoint": out}, back
                ).manifest.summary
                written = json.loads((Path(back) / "config.json").read_text())
                name = written["architectures"][0]
                import transformers

                theirs = getattr(transformers, name).from_pretrained(back, dtype=torch.float32)
                common = computed(theirs, name)
                fault = same(flat(common), flat(expected))[1]
                if fault:
                    return "wrong export", f"{name}: {fault}"
            return "imported", f"new: {new}; left out: {left}; compared: {', '.join(compared)}"
        except (DataError, UsageError) as error:
            stage = (
                "export refused"
                if Path(out).exists() and "initialized" in locals().get("summary", {})
                else "refused"
            )
            return stage, str(error).replace(str(directory), "DIR")
        except ClozeError as error:
            return "please report", str(error).replace(str(directory), "DIR")
        except Exception:
            return "traceback", traceback.format_exc(limit=-3)


def flat(outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Select the real tokens of outputs at every position."""
    real = batch()["attention_mask"].bool()
    return {
        name: tensor[real] if tensor.shape[:2] == real.shape else tensor
        for name, tensor in outputs.items()
    }


def read(
    directories: list[Path], types: list[str], forms: list[str], export: bool, listing: bool
) -> int:
    outcomes: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    for directory in directories:
        for path in sorted(directory.iterdir()):
            model_type, _, _, form = path.name.split("+")
            if model_type not in types or form not in forms:
                continue
            with contextlib.redirect_stderr(io.StringIO()):
                result, said = outcome(path, export)
            outcomes[result] += 1
            if "refused" in result:
                refusals[said] += 1
            if listing or result not in ("imported", "refused"):
                print(f"{directory.name}/{path.name}: {result}: {said}", flush=True)
    print(*(f"{count:5} {name}" for name, count in sorted(outcomes.items())), sep="\n")
    print(*(f"{count:5} x {said}" for said, count in refusals.most_common()), sep="\n")
    bad = {"wrong", "wrong export", "please report", "traceback"}
    return int(bool(bad & outcomes.keys()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("write", "read"))
    parser.add_argument("directories", nargs="+", type=Path)
    parser.add_argument("--type", action="append", choices=list(TYPES))
    parser.add_argument("--form", action="append", choices=FORMS)
    parser.add_argument("--export", action="store_true")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    types = options.type or list(TYPES)
    if options.action == "write":
        write(options.directories[0], types)
        return 0
    forms = options.form or list(FORMS)
    return read(options.directories, types, forms, options.export, options.list)


if __name__ == "__main__":
    sys.exit(main())
