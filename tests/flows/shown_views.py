"""Made-up plans, runs, results, rows and documents, as the terminal shows them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console

from cloze.core.config import StageConfig
from cloze.core.stages.execution import Execution
from cloze.flows.graph.estimate import Estimate
from cloze.flows.graph.nodes import InputSource, Node
from cloze.flows.graph.plan import PlannedNode
from cloze.flows.views import inspection, live, run_tables, terminal
from tests.flows.views.test_explain_page import DOCUMENT, other
from tests.flows.views.test_live import RECORD
from tests.flows.views.test_tables import result


def printed(width: int, show: Callable[[Console], Any]) -> str:
    """What is printed on a terminal of this width, in colours."""
    out = terminal.WholeConsole(
        file=io.StringIO(), width=width, force_terminal=True, color_system="standard",
        highlight=False, emoji=False, legacy_windows=False,
    )  # fmt: skip
    show(out)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue().replace("\x1b", "␛")


def step(name: str, *after: str, cached: bool = False, **values: Any) -> PlannedNode:
    stage, _, label = name.partition("@")
    node = Node(name=name, stage=stage, section=stage, values={"seed": label} if label else {},
                config=StageConfig(), execution=Execution(),
                inputs={parent: InputSource(node=parent) for parent in after})  # fmt: skip
    given = {"reason": "" if cached else "not made yet", **values}
    return PlannedNode(node=node, inputs={}, depends_on=after, fingerprint=name,
                       artifact=f"/runs/x/{name}-0123456789ab", cached=cached, **given)  # fmt: skip


def tables() -> Iterator[tuple[str, str]]:
    steps = [
        step("corpus", cached=True), step("vocab", "corpus"), step("dataset", "corpus", "vocab"),
        step("dataset@512", "corpus", "vocab", reason="forced"), step("pretrain", "dataset", reason="settings [changed]"),
        step("evaluate", "corpus", "vocab", "dataset@512", "pretrain", cached=True),
    ]  # fmt: skip
    costs = {
        "corpus": Estimate(), "vocab": Estimate(seconds=60.0, disk_bytes=2_000_000, memory_bytes=3 * 10**9, basis="measured"),
        "dataset": Estimate(seconds=7200.0, disk_bytes=5, memory_bytes=10**8, basis="rough"),
        "dataset@512": Estimate(note="in [two] parts"),
        "pretrain": Estimate(seconds=9e4, disk_bytes=10**12, memory_bytes=2, gpu_memory_bytes=8 * 10**9, basis="scaled"),
        "evaluate": Estimate(),
    }  # fmt: skip
    left_out = {"probe": "there is no [GPU]", "heads": "there is no [GPU]", "tag": "it is off"}
    for width in (30, 80, 140):
        yield (
            f"plan {width}",
            printed(width, lambda out: run_tables.show(out, steps, costs, 9e4, left_out)),
        )
    fewer = {**costs, "pretrain": costs["vocab"], "dataset@512": costs["dataset"]}
    yield (
        "plan without GPUs",
        printed(80, lambda out: run_tables.show(out, steps, fewer, None)),
    )
    yield (
        "nothing to do",
        printed(80, lambda out: run_tables.show(out, steps[:1], costs, None)),
    )
    instances = [
        step("corpus"),
        *(
            step(f"finetune@{n}", "corpus", cached=n < 3, reason="" if n < 3 else f"why {n % 2}")
            for n in range(45)
        ),
    ]
    counted = dict.fromkeys((one.name for one in instances), costs["vocab"])
    yield (
        "plan of many",
        printed(80, lambda out: run_tables.show(out, instances, counted, 5.0, None)),
    )
    nodes = {
        **RECORD["nodes"],
        "vocab": {"state": "queued", "why": "waits for a slot", "artifact": "a"},
        "tag": {"state": "retrying", "why": "retry 1 of 2", "artifact": "a", "started": 1e9, "ended": 1e9 + 5},
        "export": {"state": "stopped", "done": 12_000, "unit": "rows", "artifact": "a", "figures": {"step": "x", "rate": 1.5}},
    }  # fmt: skip
    record = {**RECORD, "nodes": nodes}
    yield "status", printed(100, lambda out: run_tables.show_run(out, "/runs/sample", record))
    failed = {
        **RECORD,
        "nodes": {},
        "host": "",
        "state": "crashed",
        "error": "process [7] is gone",
        "ended": None,
    }
    yield "status of a crash", printed(80, lambda out: run_tables.show_run(out, "/runs/x", failed))
    runs = {
        "a": record,
        "b": {**failed, "started": 2e9},
        "c": {**RECORD, "nodes": {"x": {"state": "cached"}}},
    }
    yield "runs", printed(100, lambda out: run_tables.show_runs(out, runs))
    results = {f"finetune@{n}": result(f"finetune@{n}", n / 100, cached=n < 2) for n in range(45)}
    for count in (3, 45):
        shown = dict(list(results.items())[:count])
        yield (
            f"results {count}",
            printed(
                90,
                lambda out, shown=shown: out.print(
                    terminal.result_table(shown, dict.fromkeys(shown, "finetune"))
                ),
            ),
        )  # type: ignore[misc]
    yield (
        "done",
        terminal.done_line(results["finetune@0"]) + terminal.done_line(results["finetune@5"], "x"),
    )
    content = {"title": "A title of some length", "columns": ["task", "one metric", "another", "a third"],
               "rows": [["a task", "0.5", "0.25", "1"], ["b", "12.5", "[x]", "10000000"]]}  # fmt: skip
    for width in (60, 24):
        yield (
            f"summary {width}",
            printed(
                width,
                lambda out, w=width: [out.print(t) for t in terminal.summary_tables(content, w)],
            ),
        )  # type: ignore[misc]


def views() -> Iterator[tuple[str, str]]:
    view = {
        "file": "train-0.arrow", "split": "train", "row": 1234, "rows": 5678, "recipe": "bert",
        "document": "255", "offset": 3, "drawing": 1, "drawings": 5, "copy": 0, "copies": 2, "pair_task": "nsp",
        "pair_label": None, "segment_start": 3, "lengths": {"row": 6, "A": 1, "B": 2}, "boundaries": None,
        "special": [0, 2, 5], "pieces": ["[CLS]", "a", "[SEP]", "b", "##c", "[SEP]"],
        "texts": ["[CLS]", " a", "[SEP]", " b", "c", "[SEP]"],
        "predictions": [
            {"position": 1, "original": "a", "shown": "[MASK]", "kind": "masked"},
            {"position": 3, "original": "b", "shown": "Ġx", "kind": "random"},
            {"position": 4, "original": "c", "shown": "c", "kind": "kept"},
        ],
    }  # fmt: skip
    yield "row", printed(90, lambda out: out.print(inspection.render(view)))
    packed = {
        **view,
        "pair_task": None,
        "boundaries": [0, 3],
        "segment_start": 6,
        "predictions": [],
    }
    yield "packed row", printed(90, lambda out: out.print(inspection.render(packed)))
    tokenizers = [
        {"documents": 1200, "words": 34_567, "bytes": 10**6, "tokenizer": f"/a/{name}/", "kind": "wordpiece",
         "size": 30_000, "vocabulary_used": 0.5, "fertility": 1.25, "single_piece_words": 0.75,
         "unknown_rate": 0.00123, "unknown_characters": 7, "bytes_per_piece": 4.5, "words_in_128": 99.0,
         "words_in_512": 400.0, "documents_in_128": 0.1, "documents_in_512": 0.9}
        for name in ("one", "two")
    ]  # fmt: skip
    yield "tokenizers", printed(100, lambda out: out.print(inspection.comparison(tokenizers)))
    steps = [
        {"name": "clean", "paragraphs": [3, 2], "characters": [300, 250], "reason": None, "detail": "",
         "changes": [{"kind": "changed", "paragraph": 1, "before": "a\tb", "after": "a b", "pieces": [["=", "a"], ["-", "\t"], ["+", " "], ["=", "b"]]},
                     {"kind": "removed", "paragraph": 2, "before": "gone\u00a0x", "after": None, "pieces": [["-", "gone"]]}],
         "removed": [["short_line", "x" * 300]]},
        {"name": "same", "paragraphs": [2, 2], "characters": [9, 9], "reason": None, "detail": "", "changes": [], "removed": []},
        {"name": "filter", "paragraphs": [1, 0], "characters": [1234, 0], "reason": "too_short", "detail": "3 words",
         "changes": [], "removed": []},
    ]  # fmt: skip
    document = {
        **DOCUMENT, "url": "http://x", "licence": "CC", "reader": {"empty_page": 2}, "outcome": "kept", "split": "train",
        "infobox": [["box", "born", "1"], ["box", "died", "2"], ["other", "x", "y"]],
        "sentences": ["One two.", "Three."], "dropped_sentences": [["reason", "s"]], "duplicates": [other("d8")],
        "duplicates_in_all": 3, "paragraphs": ["p" * 300, "q", "r"],
    }  # fmt: skip
    yield "document", printed(110, lambda out: out.print(inspection.page(document)))
    for one in steps:
        text = printed(110, lambda out, one=one: out.print(inspection._step(one)))  # type: ignore[misc]
        yield f"step {one['name']}", text
    values = {"step": 1200, "loss": 6.5, "mlm_loss": 6.0, "nsp_loss": 0.5, "heldout_loss": 6.25, "learning_rate": 9.8e-5,
              "tokens_per_second": 18_234.5, "mfu": 0.412, "grad_norm": 1.23, "data_wait": 0.05}  # fmt: skip
    yield "log lines", "\n".join([
        live.training_line(values), live.training_line(values, "x"), live.training_line({"step": 1}),
        live.training_line({**values, "nsp_loss": None}), live.live_figures(values, 3), live.live_figures({"loss": 1.0}, 3),
    ])  # fmt: skip
