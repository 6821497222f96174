"""Retrieval-augmented generation: losses of plain loops and of transformers, decoding, stages."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from cloze.core.artifacts import artifact
from cloze.core.config import parse_config
from cloze.core.errors import StoppedError, UsageError
from cloze.core.stages.execute import BuildResult, execute
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext, Reporter
from cloze.labs.selection.stages import VECTORS, VectorsConfig
from cloze.labs.seq2seq.decoder import BeamSearch
from cloze.labs.seq2seq.generate import Generate, generation_pipeline
from cloze.labs.seq2seq.rag import (
    Marginal,
    RagNetwork,
    marginal_log_likelihood,
)
from cloze.labs.seq2seq.stages import GenerateConfig
from cloze.model import checkpoint
from cloze.model.families.models import new_model
from cloze.model.hub.stages import EXPORT, ExportConfig
from cloze.model.tasks.evaluate.stage import STAGE as EVALUATE
from cloze.model.tasks.evaluate.stage import EvaluateConfig
from cloze.model.tasks.finetune.stage import STAGE as FINETUNE
from cloze.model.tasks.finetune.stage import FinetuneConfig
from cloze.model.tasks.heads import new_network
from cloze.model.tasks.table import load_task
from cloze.model.use.request import request_of
from cloze.pipeline import tokenizer
from tests.labs.retrieval.test_index import index
from tests.model.tasks.stages import Listener
from tests.pipeline.corpus.corpora import write_corpus
from tests.slices import few
from tests.tiny_models import tiny_config, tiny_model, write_tokenizer

CPU = Execution(device="cpu", threads=1)
K, LENGTH, ANSWER = 3, 12, 5
ANIMALS, PLACES = ("cat", "dog"), ("mat", "park", "paris", "capital")
FACTS = [
    (f"{animal} {verb}", [f"the {animal} {verb} in {place}."])
    for (animal, verb), place in zip(
        itertools.product(ANIMALS, ("sat", "ran", "walked")), itertools.cycle(PLACES)
    )
]


def write_pretraining(directory: Path, **values: Any) -> None:
    """Write a finished artifact of the stage pretrain with this checkpoint."""
    checkpoint.save_weights(str(directory / "checkpoint"), **values)
    checkpoint.finalize(str(directory / "checkpoint"))
    files = artifact.hash_files(str(directory), artifact.data_files(str(directory)))
    manifest = artifact.Manifest(
        stage="pretrain",
        version=1,
        fingerprint=hashlib.sha256(directory.name.encode()).hexdigest(),
        parents={},
        config={},
        files=files,
        summary={"checkpoint": "checkpoint"},
    )
    artifact.write_manifest(str(directory), manifest)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Paths of a generator of each family, a retriever, an index, its vectors, and questions."""
    base = tmp_path_factory.mktemp("rag")
    pieces = write_tokenizer(base)
    index(write_corpus(base / "corpus", FACTS, 2), base / "index", words=8)
    for name, head in (("retriever", True), ("other", False)):
        config = tiny_config(num_hidden_layers=1)
        state = tiny_model(7 + head, num_hidden_layers=1).state_dict()
        kept = {key: state[key] for key in state if key.startswith(("encoder.", "pooler."))}
        write_pretraining(
            base / name,
            model=config,
            state=kept,
            tokenizer=pieces,
            heads={"embedding": {"pooling": "mean", "normalize": True}},
            task={"name": "inverse-cloze", "options": {"temperature": 0.2}, "max_length": 24},
        )
        inputs = {"corpus": str(base / "index"), "checkpoint": str(base / name)}
        options = VectorsConfig(precision="fp32")
        execute(VECTORS, options, inputs, str(base / f"{name}-vectors"), execution=CPU)
    for family in ("t5", "bart"):
        config = tiny_config(family=family, initializer_range=0.3, max_position_embeddings=40)
        torch.manual_seed(3)
        write_pretraining(
            base / family,
            model=config,
            state=new_model(config).state_dict(),
            tokenizer=pieces,
            heads=config.heads,
        )
    (base / "qa").mkdir()
    for split, facts in (("train", FACTS), ("dev", FACTS[:3])):
        rows = [
            {"text": f"the {title} in", "label": text[0].split(" in ")[1].rstrip(".")}
            for title, text in facts
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (base / "qa" / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    names = ("corpus", "index", "retriever", "retriever-vectors", "other-vectors", "qa")
    return {name: str(base / name) for name in (*names, "t5", "bart")}


def network_of(made: dict[str, str], family: str, **options: Any) -> RagNetwork:
    loaded = checkpoint.load(made[family])
    task = load_task("text-to-text", {"passages": K, "target_length": 6, **options})
    inputs = {"vectors": made["retriever-vectors"]}
    build = BuildContext(path="", inputs=inputs, fingerprint="f" * 64, execution=CPU)
    metadata = task.open(build, loaded, tokenizer.load(loaded.tokenizer), 16)
    network = new_network(task, loaded.model, loaded.state, metadata, 0.0, seed=1)
    return cast(RagNetwork, network.eval())


def batch_of(network: RagNetwork) -> dict[str, Tensor]:
    """Two questions of different lengths, with targets."""
    torch.manual_seed(5)
    ids = torch.randint(5, 24, (2, 6))
    ids[:, 0] = 2
    real = torch.ones_like(ids, dtype=torch.bool)
    real[1, 4:] = False
    targets = torch.randint(5, 24, (2, 4))
    targets[0, 3], targets[1, 2:] = 3, torch.tensor([3, -100])
    return {
        "input_ids": ids.masked_fill(~real, 0),
        "attention_mask": real,
        "target_labels": targets,
    }


def plain_loss(network: RagNetwork, batch: dict[str, Tensor], marginal: str) -> Tensor:
    """-log p(y | x), by sums over passages and tokens, with one row at a time."""
    store, total = network.store, torch.zeros(())
    for ids, real, targets in zip(*batch.values(), strict=True):
        row, target = ids[real][None], targets[targets != -100]
        question = network.retriever.embed({
            "input_ids": row,
            "attention_mask": torch.ones_like(row, dtype=torch.bool),
            "token_type_ids": torch.zeros_like(row),
        })[0]  # fmt: skip
        scores = store.vectors @ question
        best = scores.detach().argsort(descending=True)[:K].tolist()
        prior = torch.softmax(scores[best] / 0.2, dim=0)
        likely = []
        for number in best:
            alone = store.tokens.alone(torch.tensor([number]))
            passage = alone["input_ids"][alone["attention_mask"]][1:]
            read = torch.cat([row[0], passage])[None]
            first = network.encoder.ids.first
            given = [] if first is None else [torch.tensor([first])]
            memory = network.encoder.memory_of(read, torch.ones_like(read, dtype=torch.bool))
            states = network.encoder.decode(memory, torch.cat([*given, target])[None])
            logits = network.encoder.logits(states)[0, len(given) :]
            likely.append(logits.softmax(dim=1)[torch.arange(len(target)), target])
        stacked = torch.stack(likely)
        if marginal == "sequence":
            total = total - (prior * stacked.prod(dim=1)).sum().log()
        else:
            total = total - (prior[:, None] * stacked).sum(dim=0).log().sum()
    return total


@pytest.mark.parametrize("marginal", ["sequence", "token"])
@pytest.mark.parametrize("family", ["t5", "bart"])
def test_the_loss_is_that_of_a_plain_loop(made: dict[str, str], family: str, marginal: str) -> None:
    network = network_of(made, family, marginal=marginal)
    task = load_task("text-to-text", {"passages": K, "marginal": marginal})
    batch = batch_of(network)
    loss = task.loss(network(batch), batch)
    loss.total.backward()
    found = {name: own.grad for name, own in network.named_parameters() if own.grad is not None}
    network.zero_grad()
    expected = plain_loss(network, batch, marginal)
    torch.testing.assert_close(loss.total, expected, atol=1e-5, rtol=1e-5)
    expected.backward()
    for name, own in network.named_parameters():
        if own.grad is not None and bool(own.grad.abs().max() > 1e-7):
            torch.testing.assert_close(found[name], own.grad, atol=1e-5, rtol=1e-3)
    assert any(name.startswith("retriever.") for name in found)
    assert any(name.startswith("encoder.decoder.") for name in found)


@pytest.mark.parametrize("marginal", ["sequence", "token"])
def test_the_loss_is_that_of_transformers(made: dict[str, str], marginal: str) -> None:
    transformers = pytest.importorskip("transformers")
    network = network_of(made, "t5", marginal=marginal)
    batch = batch_of(network)
    memory, numbers, prior = network.read(batch)
    labels = batch["target_labels"]
    outputs = network(batch)
    logits = outputs["seq2seq_logits"]
    config = transformers.RagConfig.from_question_encoder_generator_configs(
        transformers.DPRConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=1),
        transformers.T5Config(d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2),
        n_docs=K,
    )
    kind = {"sequence": "RagSequenceForGeneration", "token": "RagTokenForGeneration"}[marginal]
    theirs = getattr(transformers, kind)(config=config)
    config.generator.pad_token_id, config.generator.bos_token_id = 0, None
    # It shifts the targets to the left, and reads padding as nothing to predict.
    target = torch.nn.functional.pad(labels.masked_fill(labels == -100, 0), (1, 0))
    padded = torch.nn.functional.pad(logits, (0, 0, 0, 1))
    expected = theirs.get_nll(padded, prior, target, reduce_loss=True, n_docs=K)
    task = load_task("text-to-text", {"passages": K, "marginal": marginal})
    torch.testing.assert_close(task.loss(outputs, batch).total, expected, atol=1e-4, rtol=1e-5)
    assert len(memory.states) == 2 * K == numbers.numel()


@pytest.mark.parametrize(
    ("family", "marginal"),
    few(
        [
            pytest.param(family, marginal, id=f"{family}-{marginal}")
            for family in ("t5", "bart")
            for marginal in ("sequence", "token")
        ],
        "t5-token",
        "bart-sequence",
    ),
)
def test_decoding_finds_the_likeliest_output(
    made: dict[str, str], family: str, marginal: Marginal
) -> None:
    """Of all outputs of two tokens, with as many beams as tokens."""
    network = network_of(made, family, marginal=marginal)
    batch, ids = batch_of(network), network.encoder.ids
    size = network.encoder.embeddings.word.weight.shape[0]
    tokens = [token for token in range(size) if token not in (ids.pad, ids.first)]
    pairs = [(one, two) for one in tokens if one != ids.end for two in tokens]
    every = torch.tensor([(ids.end, -100), *pairs])
    with torch.no_grad():
        memory, _, prior = network.read(batch)
        search = BeamSearch(beams=size, length_penalty=0.0, tokens=2)
        written = network.write(memory, prior, search)
    for row in range(2):
        outputs = every
        many = {name: value[row].expand(len(outputs), -1) for name, value in batch.items()}
        found = network({**many, "target_labels": outputs})
        likely = found["seq2seq_logits"].log_softmax(dim=-1).unflatten(0, found["prior"].shape)
        scores = marginal_log_likelihood(likely, found["prior"], outputs, marginal)
        if marginal == "sequence":  # only outputs that are the best of one passage
            alone = torch.stack([
                marginal_log_likelihood(
                    likely[:, [number]], torch.zeros(len(outputs), 1), outputs, "sequence"
                )
                for number in range(K)
            ])  # fmt: skip
            best = alone.argmax(dim=1)
            scores, outputs = scores[best], outputs[best]
        expected = outputs[scores.argmax()]
        expected = expected[expected != -100]
        assert written[row, : len(expected)].tolist() == expected.tolist()


def finetune(
    made: dict[str, str], out: Path, report: Reporter | None = None, **values: Any
) -> BuildResult:
    inputs = {"checkpoint": made["t5"], "vectors": made["retriever-vectors"]}
    options = {"passages": K, "target_length": ANSWER, **values.pop("options", {})}
    config = FinetuneConfig(
        **{
            "task": "text-to-text",
            "data": made["qa"],
            "options": options,
            "epochs": 2,
            "global_batch": 2,
            "learning_rate": 1e-2,
            "max_length": LENGTH,
            "precision": "fp32",
            "baselines": False,
            **values.pop("config", {}),
        }
    )
    execution = Execution(**{"device": "cpu", "threads": 1, **values.pop("execution", {})})
    inputs |= values
    return execute(
        FINETUNE, config, inputs, str(out), execution=execution, report=report or Reporter()
    )


def test_it_is_trained_scored_and_used(made: dict[str, str], tmp_path: Path) -> None:
    options = {"marginal": "token"}
    settings = {"epochs": 40, "learning_rate": 1e-2}
    finetune(made, tmp_path / "rag", options=options, config=settings)
    result = json.loads((tmp_path / "rag" / "metrics.json").read_text())
    assert result["metrics"]["exact_match"] == 1.0
    found = execute(
        EVALUATE,
        EvaluateConfig(precision="fp32", data=made["qa"]),
        {"checkpoint": str(tmp_path / "rag")},
        str(tmp_path / "evaluation"),
    )
    assert found.as_json()["metrics"]["exact_match"] == 1.0
    before = checkpoint.load(made["retriever"]).state
    after = checkpoint.load(str(tmp_path / "rag")).state
    word = "encoder.embeddings.word.weight"
    assert not torch.equal(after[f"retriever.{word}"], before[word])  # the query encoder learns
    config = parse_config(GenerateConfig, {"requests": [{"text": "x"}]}, "generate")
    verb = Generate(str(tmp_path / "rag"), config)
    (answer,) = verb.answer([verb.read(request_of({"text": "the cat ran in"}, 0))])
    written = answer["continuations"][0]
    assert written["text"] == "park"
    assert len(written["passages"]) == K
    assert sum(own["probability"] for own in written["passages"]) == pytest.approx(1.0)
    assert {"title", "text", "url", "licence"} <= written["passages"][0].keys()
    with pytest.raises(UsageError, match="vectors of another checkpoint"):
        generation_pipeline(str(tmp_path / "rag"), made["other-vectors"])
    with pytest.raises(UsageError, match="has no Hugging Face form"):
        execute(EXPORT, ExportConfig(), {"checkpoint": str(tmp_path / "rag")}, str(tmp_path / "hf"))


def test_a_resumed_training_is_the_same(made: dict[str, str], tmp_path: Path) -> None:
    execution = {"checkpoint_every": 2}
    whole = finetune(made, tmp_path / "whole")
    with pytest.raises(StoppedError):
        finetune(made, tmp_path / "parts", Listener(stop_at=3), execution=execution)
    parts = finetune(made, tmp_path / "parts", execution=execution)
    assert whole.as_json()["metrics"] == parts.as_json()["metrics"]
    states = [checkpoint.load(str(tmp_path / name)).state for name in ("whole", "parts")]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_what_cannot_be_retrieved_is_refused(made: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"max_length \(30\) leaves 10 tokens to a passage"):
        finetune(made, tmp_path / "long", config={"max_length": 30})
    with pytest.raises(
        UsageError, match="is for text-to-text and open-questions tasks, not for sst2"
    ):
        finetune(made, tmp_path / "task", config={"task": "sst2", "options": {}})
    with pytest.raises(UsageError, match="has no vectors of passages"):
        finetune(made, tmp_path / "index", vectors=made["index"])
    with pytest.raises(UsageError, match="is for checkpoints that were fine-tuned with --retrieve"):
        generation_pipeline(made["t5"], made["retriever-vectors"])
