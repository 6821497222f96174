"""Pretraining with retrieval (REALM): the loss of a plain loop, exact resumes, refusals."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cloze.core import storage
from cloze.core.arrow import read_arrow
from cloze.core.errors import StoppedError, UsageError
from cloze.core.stages.execute import BuildResult, execute
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext, Reporter
from cloze.labs.embed import EmbeddingPipeline
from cloze.labs.retrieval.realm import RealmCompanion, RetrievalModule, Retriever, load_retrieval
from cloze.model import checkpoint
from cloze.model.data.batch import collate
from cloze.model.data.shards import ShardedRows
from cloze.model.families.models import load_model, new_model
from cloze.model.train.stage import STAGE
from cloze.pipeline import tokenizer
from cloze.pipeline.tokenizer.tokenizer import Tokenizer
from tests.labs.retrieval.test_index import index
from tests.model.datasets import write_dataset
from tests.model.layers.test_device_questions import NoQuestions
from tests.model.tasks.stages import Listener
from tests.model.train.ranks import config
from tests.pipeline.corpus.corpora import write_corpus
from tests.pipeline.dataset.datasets import make
from tests.tiny_models import WORDS, tiny_config, tiny_model, write_tokenizer

K, LENGTH = 3, 10
PLAIN = [word for word in WORDS if word.isalpha()]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Paths of a dataset, the index of its corpus, and a retriever of random weights."""
    base, draw = tmp_path_factory.mktemp("realm"), np.random.default_rng(5)
    documents = []
    for number in range(8):
        lengths = draw.integers(1, 9, 6 + number % 3)
        lengths[number % 4] = 17  # more than a row has
        words = [" ".join(draw.choice(PLAIN, length)) + " ." for length in lengths]
        documents.append((" ".join(draw.choice(PLAIN, 2)), [*words[:2], "", *words[2:]]))
    names = [name for name, _ in documents]
    assert len(set(names)) == len(names)
    corpus = write_corpus(base / "corpus", documents, 2, heldout=names[:2])
    index(corpus, base / "index", words=12)
    pieces = write_tokenizer(base)
    dataset = make(
        corpus, pieces, base / "dataset",
        recipe="roberta-doc", length=LENGTH, mask_copies=1, shards=1, mask_rate=0.3,
    )  # fmt: skip
    model = tiny_config(num_hidden_layers=1)
    backbone = tiny_model(7, num_hidden_layers=1).state_dict()
    names = [name for name in backbone if name.startswith(("encoder.", "pooler."))]
    checkpoint.save_weights(
        str(base / "retriever"),
        model=model,
        state={name: backbone[name] for name in names},
        tokenizer=pieces,
        heads={"embedding": {"pooling": "mean", "normalize": True}},
        task={"name": "inverse-cloze", "options": {"temperature": 0.2}, "max_length": 24},
    )
    checkpoint.finalize(str(base / "retriever"))
    return {
        "dataset": str(dataset.artifact),
        "index": str(base / "index"),
        "retriever": str(base / "retriever"),
    }


def pretrain(
    made: dict[str, str], out: Path, report: Reporter | None = None, **values: Any
) -> BuildResult:
    model = values.pop("model", tiny_config(vocab_size=0, hidden_dropout=0.1))
    options = {"passages": K, "refresh_steps": 2}
    values = {"steps": 7, "log_every": 1, "retrieval": options, **values}
    execution = Execution(threads=1, device="cpu", **values.pop("execution", {}))
    settings = config(**values).model_copy(update={"model": model})
    return execute(
        STAGE, settings, made, str(out), execution=execution, report=report or Reporter()
    )


def passages_of(made: dict[str, str], pieces: Tokenizer) -> list[dict[str, Any]]:
    """Tokens, document and range of tokens of each passage, sentence by sentence."""
    passages: list[dict[str, Any]] = []
    ends: dict[int, int] = {}
    for path in sorted(Path(made["index"]).glob("passages-*.arrow")):
        for row in read_arrow(str(path)).to_pylist():
            tokens = [token for ids in pieces.encode_batch(row["sentences"]) for token in ids]
            (title,) = pieces.encode_batch([row["title"]])
            begin = ends.get(row["document"], 0)
            ends[row["document"]] = begin + len(tokens)
            passages.append({
                "tokens": [*title, *tokens][: 32 - LENGTH - 1] + [pieces.special.sep],
                "document": row["document"],
                "range": range(begin, begin + len(tokens)),
                "body": tokens,
            })  # fmt: skip
    return passages


def alone(ids: list[int]) -> dict[str, Tensor]:
    tokens = torch.tensor([ids])
    return {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens, dtype=torch.bool),
        "token_type_ids": torch.zeros_like(tokens),
    }


@pytest.mark.parametrize("family", ["bert", "modern"])
def test_the_loss_is_that_of_a_plain_loop(made: dict[str, str], family: str) -> None:
    pieces = tokenizer.load(storage.join(made["dataset"], "tokenizer"))
    shards = ShardedRows(made["dataset"], "train")
    assert shards.info is not None
    network = tiny_model(3, family=family)
    build = BuildContext(path="", inputs=made, fingerprint="f" * 64, execution=Execution())
    found = load_retrieval(
        config(retrieval={"passages": K}),
        build,
        tiny_config(family=family),
        shards.info,
        storage.join(made["dataset"], "tokenizer"),
        ("mlm",),
    )
    assert isinstance(found, RealmCompanion)
    found.extend(network)
    module = RetrievalModule(network, found, "fp32")
    numbers = np.arange(12)
    rows = shards.take(numbers, np.zeros_like(numbers))
    batch = collate(rows, pad=0, longest=LENGTH)
    count = module.count_targets(batch)[0]
    assert count == rows.counts.sum() > 12
    # The trained retriever has moved on since its vectors were computed.
    retriever = module.retriever
    with torch.no_grad():
        for weight in retriever.current.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=torch.manual_seed(1)))
    loss, figures = module(batch, torch.tensor([float(count)]))
    loss.backward()
    grads = {name: own.grad for name, own in network.named_parameters() if own.grad is not None}
    network.zero_grad()

    passages = passages_of(made, pieces)
    cls, temperature = pieces.special.cls, 0.2
    served = torch.cat(
        [retriever.served.embed(alone([cls, *passage["tokens"]])) for passage in passages]
    )
    total, right, at, token = torch.zeros(()), 0, 0, 0
    excluded_somewhere = 0
    for row in range(len(numbers)):
        ids = rows.ids[token : token + rows.lengths[row]].astype(int).tolist()
        token += rows.lengths[row]
        places = rows.positions[at : at + rows.counts[row]].astype(int).tolist()
        labels = [ids[place] for place in places]
        masked = list(ids)
        for place, shown in zip(
            places, rows.replacements[at : at + rows.counts[row]].tolist(), strict=True
        ):
            masked[place] = shown
        at += rows.counts[row]
        question = retriever.current.embed(alone(masked))
        # Passages of the same document whose text the row is a part of, or overlaps.
        text = ids[1:-1]
        begins = [
            begin
            for begin in range(200)
            if [
                token
                for passage in passages
                if passage["document"] == int(rows.documents[row])
                for token in passage["body"]
            ][begin : begin + len(text)]
            == text
        ]
        assert len(begins) == 1
        own = set(range(begins[0], begins[0] + len(text)))
        allowed = [
            number
            for number, passage in enumerate(passages)
            if passage["document"] != int(rows.documents[row]) or not own & set(passage["range"])
        ]
        excluded_somewhere += len(passages) - len(allowed)
        order = sorted(allowed, key=lambda number: -float((served[number] @ question[0]).detach()))[
            :K
        ]
        choices = [passages[number]["tokens"] for number in order] + [[]]
        scores = torch.stack([
            (retriever.current.embed(alone([cls, *choice]))[0] @ question[0]) / temperature
            for choice in choices
        ])  # fmt: skip
        prior = torch.softmax(scores, 0)
        joint, mixture = [], []
        for choice in choices:
            reading = alone([*masked, *choice])
            if family == "bert":
                reading["token_type_ids"][:, len(masked) :] = 1
            logits = network({**reading, "masked_positions": torch.tensor(places).long()})
            likely = torch.softmax(logits["mlm_logits"], -1)
            mixture.append(likely)
            joint.append(torch.stack([likely[i, label] for i, label in enumerate(labels)]).prod())
        total = total - torch.log((prior * torch.stack(joint)).sum())
        guesses = (prior[:, None, None] * torch.stack(mixture)).sum(0).argmax(-1)
        right += int((guesses == torch.tensor(labels)).sum())
    assert excluded_somewhere > 12
    torch.testing.assert_close(figures[0, 0], total.double(), rtol=1e-5, atol=1e-5)
    assert int(figures[1, 0]) == right
    (total / count).backward()
    expected = {name: own.grad for name, own in network.named_parameters() if own.grad is not None}
    assert grads.keys() <= expected.keys()
    assert {name.split(".")[0] for name in grads} >= {"encoder", "masked_lm", "retrieval"}
    for name, gradient in grads.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-3, atol=1e-6)
    assert not any(name.startswith(("retrieval.served", "retrieval.next")) for name in expected)


def test_a_stopped_run_resumes_to_the_bit(made: dict[str, str], tmp_path: Path) -> None:
    log = Listener()
    whole = pretrain(made, tmp_path / "whole", report=log)
    for stop in (1, 3, 4):  # within an interval, and at its end
        out = tmp_path / f"parts{stop}"
        with pytest.raises(StoppedError):
            pretrain(made, out, report=Listener(stop_at=stop))
        parts = pretrain(made, out)
        assert parts.manifest.content_sha256 == whole.manifest.content_sha256
    other = pretrain(made, tmp_path / "rarer", retrieval={"passages": K, "refresh_steps": 3})
    assert other.manifest.content_sha256 != whole.manifest.content_sha256
    summary = whole.manifest.summary
    assert {"heldout_null_loss", "heldout_null_share"} <= summary.keys()
    assert 0 < summary["heldout_null_share"] < 1
    loaded = checkpoint.load(str(tmp_path / "whole"))
    load_model(loaded.model, loaded.state)  # without the retriever
    assert summary["parameters"] == sum(w.numel() for w in new_model(loaded.model).parameters())
    before, after = (
        EmbeddingPipeline(path).embed(["the cat sat"])
        for path in (made["retriever"], str(tmp_path / "whole" / "retriever"))
    )
    assert not np.allclose(before, after)


def test_the_copies_move_on_at_their_steps(made: dict[str, str], tmp_path: Path) -> None:
    """After steps 0 to 4 of interval 2: served is as of step 2, next as of step 4."""
    states = {}
    for steps in (2, 4, 5):
        settings: dict[str, Any] = {"steps": steps, "schedule_steps": 7}
        out = tmp_path / str(steps)
        pretrain(made, out, **settings)
        (path,) = (out / "checkpoints").iterdir()
        states[steps] = checkpoint.weights(str(path))
    last = states[5]
    for name in (name for name in states[2] if name.startswith("retrieval.current.")):
        suffix = name.removeprefix("retrieval.current.")
        assert torch.equal(last[f"retrieval.served.{suffix}"], states[2][name])
        assert torch.equal(last[f"retrieval.next.{suffix}"], states[4][name])
    assert int(last["retrieval.interval"]) == 2


def test_copies_have_no_dropout_while_the_retriever_trains() -> None:
    from cloze.labs.embed import BiEncoder
    from cloze.model.families.models import new_backbone

    retriever = Retriever(BiEncoder(*new_backbone(tiny_config()), "mean", True))
    retriever.train()
    assert retriever.current.training
    assert all(module.training for module in retriever.current.modules())
    for name in ("served", "next"):
        assert not any(module.training for module in retriever.get_submodule(name).modules())


def test_what_does_not_fit_is_refused(made: dict[str, str], tmp_path: Path) -> None:
    def refused(match: str, inputs: dict[str, str], **values: Any) -> None:
        with pytest.raises(UsageError, match=match):
            pretrain(inputs, tmp_path / "out", **values)

    without = {name: path for name, path in made.items() if name != "retriever"}
    refused("name both with --retrieve and --retriever", without)
    refused("name both", {"dataset": made["dataset"]})
    plain = {**made, "retriever": str(tmp_path / "plain")}
    pieces = storage.join(made["dataset"], "tokenizer")
    checkpoint.save_weights(
        plain["retriever"], model=tiny_config(), state=tiny_model().state_dict(),
        tokenizer=pieces, heads={"masked_lm": {}},
    )  # fmt: skip
    checkpoint.finalize(plain["retriever"])
    refused("was not tuned for retrieval", plain)
    small = tiny_config(vocab_size=0, max_position_embeddings=24)
    refused("smaller --length", made, model=small)
    refused("is for engine torch", made, execution={"zero": 2})
    pairs = write_dataset(tmp_path / "pairs", pair_task="nsp")
    refused("objective mlm and rows of one text", {**made, "dataset": pairs})


def test_a_step_on_a_gpu_asks_the_device_for_nothing(made: dict[str, str]) -> None:
    """Lengths, candidates and intervals are known on the host; the loss is that of the CPU."""
    shards = ShardedRows(made["dataset"], "train")
    assert shards.info is not None
    build = BuildContext(path="", inputs=made, fingerprint="f" * 64, execution=Execution())
    pieces, settings = storage.join(made["dataset"], "tokenizer"), config(retrieval={"passages": K})
    losses, gradients = [], []
    for device_type in ("cpu", "cuda"):
        network = tiny_model(3, hidden_dropout=0.0, attention_dropout=0.0)
        found = load_retrieval(settings, build, tiny_config(), shards.info, pieces, ("mlm",))
        assert isinstance(found, RealmCompanion)
        found.extend(network)
        scoring = RetrievalModule(network, found, "fp32", device_type).train()
        numbers = np.arange(4)
        batch = collate(shards.take(numbers, numbers * 0), pad=found.passages.pad, longest=LENGTH)
        counts = torch.ones(1)
        scoring({**batch, "step": torch.tensor(0)}, counts)  # vectors and copies of the interval
        for step in (0, 1):
            asking = nullcontext() if device_type == "cpu" else NoQuestions()
            with asking:
                loss, _ = scoring({**batch, "step": step}, counts)
                loss.backward()
            losses.append(float(loss.detach()))
        gradients.append(
            torch.cat([one.grad.flatten() for one in scoring.parameters() if one.grad is not None])
        )
    assert losses[:2] == pytest.approx(losses[2:], rel=1e-5)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)
