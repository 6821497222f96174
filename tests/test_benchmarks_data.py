"""The data benchmarks count right: rates, ratios, CPU time and memory of processes, and the input
that they make. Not how fast.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.data import cases, corpus_stage, dataset_stage, loader, memory, reference, sources
from benchmarks.data.measure import (
    Case,
    Clock,
    Rate,
    Sample,
    alternate,
    machine,
    median_rate,
    median_ratio,
    run,
    slope,
    slopes,
    table,
    whole,
)
from benchmarks.data.prepared import Work
from cloze.core.stages.execute import execute
from cloze.pipeline.corpus.stage import STAGE, CorpusConfig
from tests.pipeline.corpus.corpora import made_documents, write_corpus
from tests.pipeline.dataset.datasets import make, write_vocab
from tests.slices import few

HERE = "tests.test_benchmarks_data"
BURNT = 0.3  # seconds


def burn(seconds: float, megabytes: int, in_child: bool = False) -> dict[str, Any]:
    """A case of known CPU time and memory, of its own or of a process that it starts."""
    with Clock() as clock:
        if in_child:
            program = f"from {HERE} import burn; burn({seconds}, {megabytes})"
            subprocess.run([sys.executable, "-c", program], check=True)
        else:
            held = bytearray(megabytes * 1_000_000)
            held[::4096] = b"1" * len(held[::4096])  # touched, or the kernel gives nothing
            end = time.process_time() + seconds
            while time.process_time() < end:
                pass
            time.sleep(0.3)
    return clock.sample(5.0, told=megabytes)


def fail() -> dict[str, Any]:
    """A case that cannot be done."""
    raise ValueError("the reason")


def sample(wall: float, cpu: float, work: float, **more: Any) -> Sample:
    return Sample(wall=wall, cpu=cpu, work=work, peak=100.0, anonymous=80.0, more=more)


class TestRates:
    positive = st.floats(min_value=1e-3, max_value=1e3)

    @given(
        start=st.floats(min_value=0, max_value=1e3),
        each=positive,
        small=st.integers(1, 100),
        more=st.integers(1, 100),
    )
    def test_a_slope_is_what_more_costs_whatever_the_start_costs(
        self, start: float, each: float, small: int, more: int
    ) -> None:
        first, last = (
            sample(start + each * work, 2 * (start + each * work), work)
            for work in (small, small + more)
        )
        rate = slope(first, last)
        assert rate.wall == pytest.approx(1 / each, rel=1e-4)
        assert rate.cpu == pytest.approx(1 / (2 * each), rel=1e-4)

    def test_times_that_do_not_grow_give_no_number_and_no_median_falls_for_it(self) -> None:
        broken = slope(sample(2, 1, 1), sample(1, 3, 2))
        assert math.isnan(broken.wall)
        assert broken.cpu == 0.5
        assert median_rate([broken, Rate(4, 4), Rate(6, 6)]).wall == 5

    def test_the_ratio_is_taken_round_by_round(self) -> None:
        ours, theirs = (
            [Rate(2, 2), Rate(20, 20), Rate(3, 3)],
            [Rate(1, 1), Rate(10, 10), Rate(1, 1)],
        )
        assert median_ratio(ours, theirs) == Rate(
            2, 2
        )  # the machine drifted tenfold in the second round

    def test_a_case_of_fewer_rounds_is_compared_with_its_last(self) -> None:
        assert len(slopes([sample(1, 1, 1)], [sample(2, 2, 2), sample(3, 3, 2)])) == 2
        assert median_ratio([Rate(4, 4), Rate(8, 8)], [Rate(2, 2)]) == Rate(3, 3)

    def test_the_whole_counts_the_start(self) -> None:
        assert whole(sample(4, 2, 8)) == Rate(2, 4)


class TestProcesses:
    @pytest.mark.parametrize("in_child", few([False, True], True))
    def test_cpu_time_and_memory_of_a_case_and_of_what_it_starts(self, in_child: bool) -> None:
        found = run(
            Case(
                function=f"{HERE}:burn",
                arguments={"seconds": BURNT, "megabytes": 300, "in_child": in_child},
            )
        )
        assert found.cpu >= BURNT
        assert found.wall >= BURNT
        assert found.work == 5
        assert found.more == {"told": 300}
        assert 300 <= found.peak < 600
        assert 290 <= found.anonymous <= found.peak

    def test_a_case_has_the_cores_and_the_environment_that_it_is_given(self) -> None:
        program = (
            "import os, json; print('chatter'); print(json.dumps({'wall': 1, 'cpu': 1, 'work': "
            "len(os.sched_getaffinity(0)),"
            " 'more': {'told': os.environ['TOLD']}}))"
        )
        found = run(Case(command=(sys.executable, "-c", program), environment={"TOLD": "yes"}))
        assert found.work == 1
        assert found.more == {"told": "yes"}

    def test_another_program_s_times_are_those_of_its_process(self) -> None:
        program = "import time; e = time.process_time() + 0.3\nwhile time.process_time() < e: pass"
        found = run(Case(command=(sys.executable, "-c", program)))
        assert found.cpu >= 0.3
        assert found.wall >= 0.3

    def test_a_case_that_fails_is_told_with_its_reason(self) -> None:
        with pytest.raises(
            RuntimeError, match=r"fail ended with 1: .*(\n.*)*ValueError: the reason"
        ):
            run(Case(function=f"{HERE}:fail"))

    def test_cases_alternate_and_the_slow_one_sits_out(self) -> None:
        said: list[str] = []
        quick = Case(command=(sys.executable, "-c", ""))
        slow = Case(command=(sys.executable, "-c", ""), rounds=1)
        found = alternate({"a": quick, "b": slow}, 2, said.append)
        assert [len(found[name]) for name in "ab"] == [2, 1]
        assert [line.split()[2] for line in said] == ["a:", "b:", "a:"]


class TestSources:
    def test_a_repetition_is_as_long_and_another_text(self, shared_data: Path) -> None:
        text = (shared_data / "wikipedia/extracted/wiki_01").read_bytes()[:100_000]
        copies = [sources.varied(text, number, str(shared_data)) for number in range(4)]
        assert copies[0] == text
        assert sources.varied(text, 2, str(shared_data)) == copies[2]
        assert {len(copy) for copy in copies} == {len(text)}

        def shingles(copy: bytes) -> set[tuple[bytes, ...]]:
            words = copy.split()
            return set(zip(*(words[shift:] for shift in range(5)), strict=False))

        for one, other in ((0, 1), (1, 3)):
            found, wanted = shingles(copies[one]), shingles(copies[other])
            assert len(found & wanted) / len(found | wanted) < 0.25

    @pytest.mark.parametrize("kind", few(sources.KINDS, "jsonl", "wikipedia"))
    def test_sources_of_a_size_are_read_whole(
        self, kind: str, shared_data: Path, tmp_path: Path
    ) -> None:
        size = 1_000_000
        raw = sources.make(kind, size, str(tmp_path / "raw"), str(shared_data))
        config = CorpusConfig.model_validate({"sources": [{"kind": raw.kind, "path": raw.path}]})
        counters = execute(STAGE, config, {}, str(tmp_path / "corpus")).manifest.counters
        assert counters["kept/documents"] > 0
        assert not any(name.startswith("quarantined/") for name in counters)
        if kind != "docstrings":  # a package is read whole
            assert abs(raw.bytes - size) < 500_000

    @pytest.mark.parametrize("kind", few(["jsonl", "warc"], "jsonl"))
    def test_repeated_documents_are_new_ones(
        self, kind: str, shared_data: Path, tmp_path: Path
    ) -> None:
        found = []
        whole_size = {"jsonl": 177_778, "warc": 1_803_043}[kind]
        for times in (1, 2):
            raw = sources.make(
                kind, times * whole_size, str(tmp_path / f"raw{times}"), str(shared_data)
            )
            config = CorpusConfig.model_validate(
                {"sources": [{"kind": raw.kind, "path": raw.path}]}
            )
            found.append(execute(STAGE, config, {}, str(tmp_path / f"corpus{times}")).manifest)
        assert found[1].rows >= 1.9 * found[0].rows
        assert (
            found[1].counters.get("dropped/near_duplicate", 0)
            <= 2 * found[0].counters.get("dropped/near_duplicate", 0) + 1
        )


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_corpus(tmp_path_factory.mktemp("corpus"), made_documents(30), shards=2)


@pytest.fixture(scope="module")
def vocab(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_vocab(tmp_path_factory.mktemp("vocab"))


class TestCases:
    def test_the_tokenizer_alone_and_the_stage_do_the_same_work(
        self, corpus: str, vocab: str, tmp_path: Path
    ) -> None:
        out = tmp_path / "dataset"
        alone = cases.tokenizer_alone(corpus, vocab, parallel=False)
        stage = cases.dataset(corpus, vocab, {"length": 48, "mask_copies": 2}, 1, str(out))
        assert alone["work"] == stage["work"] > 10_000
        assert stage["more"]["shards"] > 0
        assert not out.exists()

    def test_their_program_is_given_every_sentence(self, corpus: str, tmp_path: Path) -> None:
        reference.write_text(corpus, str(tmp_path / "text"))
        given = (tmp_path / "text").read_text(encoding="utf-8").split("\n\n")[:-1]
        assert sorted(given) == sorted("\n".join(sentences) for _, sentences in made_documents(30))

    @pytest.mark.parametrize("dynamic", few([False, True], True))
    def test_the_loader_counts_the_tokens_of_an_epoch(
        self, dynamic: bool, corpus: str, vocab: str, tmp_path: Path
    ) -> None:
        made = make(corpus, vocab, tmp_path / "dataset")
        found = loader.throughput(made.artifact, dynamic, 1)
        lengths = [
            length
            for table in _train(made.artifact)
            for length in table["input_ids"].combine_chunks().value_lengths()
        ]
        assert found["work"] == sum(length.as_py() for length in lengths)
        assert loader.reach(made.artifact, dynamic, 4, 6.5)["work"] == 1


def _train(path: str) -> list[Any]:
    import pyarrow as pa

    return [
        pa.ipc.open_file(pa.memory_map(str(file))).read_all()
        for file in sorted(Path(path).glob("train-*.arrow"))
    ]


class TestReports:
    def test_dataset(self) -> None:
        costs = {"encode_batch_fast, wordpiece": 1.0, "bert, 1 copy": 0.4, "bert, 10 copies": 0.5}
        samples = {
            f"{name} {size}": [sample(9 + cost * work, 1 + cost * work, work)] * 2
            for name, cost in costs.items()
            for size, work in (("5", 10), ("25", 50))
        }
        text = dataset_stage.report(
            samples, {"bert, 1 copy": "wordpiece", "bert, 10 copies": "wordpiece"}, (5, 25)
        )
        assert _cells(text, "bert, 10 copies")[2:] == [
            "2.00",
            "2.00",
            f"{51 / 26:.2f}",
        ]  # CPU, wall, CPU with the start
        assert "Ten copies cost 1.25 times the CPU time of one" in text

    def test_reference(self) -> None:
        samples = {
            f"{name} {size}": [
                sample(
                    start + cost * work,
                    start + cost * work,
                    0 if name == reference.THEIRS else work,
                    **more,
                )
            ]
            for name, start, cost, more in (
                (reference.OURS, 1, 0.1, {"shards": 1_000_000}),
                (reference.PACKED, 1, 0.2, {"shards": 500_000}),
                (reference.THEIRS, 10, 4, {}),
            )
            for size, work in (("1", 10), ("4", 40))
        }
        text = reference.report(samples, (1, 4), {1: 2_000_000, 4: 8_000_000})
        cells = _cells(text, reference.OURS)
        assert cells[1:3] == ["40.0", "40.0"]
        assert cells[4] == f"{(170 / 5):.1f}"
        assert cells[6:8] == ["1.0 MB", "1/8.0"]

    def test_corpus(self) -> None:
        costs = {
            "wikipedia": 0.2,
            corpus_stage.GENSIM_NAME: 0.5,
            "mix, 1 workers": 0.2,
            "mix, 2 workers": 0.21,
        }
        samples = {
            f"{name} {size}": [
                sample((0.5 if "2 w" in name else 1) * cost * work, cost * work, work * 1e6)
            ]
            for name, cost in costs.items()
            for size, work in (("6", 6), ("24", 24))
        }
        text = corpus_stage.report(samples, (6, 24))
        assert _cells(text, "wikipedia")[:3] == ["24.0", "5.00", "5.00"]
        assert "Wikipedia: 2.50 times gensim's MB/s a core." in text
        assert "Two workers: 1.90 times one by wall time, at 1.05 times its CPU time." in text

    def test_memory(self) -> None:
        first, small, large = ([sample(1, 2 + 0.1 * work, work)] for work in (2, 20, 200))
        assert memory.linearity(first, small, large) == pytest.approx(1)
        quadratic = ([sample(1, 0.1 * work**2, work)] for work in (2, 20, 200))
        assert memory.linearity(*quadratic) == pytest.approx(10)
        text = memory.report(
            {"corpus 2": first, "corpus 20": small, "corpus 200": large}, (2, 20, 200)
        )
        assert _cells(text, "corpus") == ["100", "100", "+0%", "80", "80", "+0%", "1.00"]

    def test_loader(self) -> None:
        samples = {
            "bert, stored": [sample(2, 1, 4e6)],
            "bert, stored @0.5": [sample(0.5, 0.4, 1), sample(0.3, 0.2, 1)],
        }
        assert _cells(loader.report(samples), "bert, stored") == [
            "4.00M",
            "2.00M",
            "0.500 s",
            "0.400 s",
        ]


def _cells(text: str, name: str) -> list[str]:
    """The cells behind a row's name."""
    row = next(line for line in text.splitlines() if line.startswith(f"| {name} "))
    return [cell.strip() for cell in row.strip("|").split("|")][1:]


def test_the_machine_and_tables() -> None:
    assert "cores" in machine()
    assert table(["a", "b"], [["x", "long"]]) == "| a | b    |\n|---|------|\n| x | long |"


def test_what_is_made_is_made_once(shared_data: Path, tmp_path: Path) -> None:
    work = Work(str(tmp_path), str(shared_data))
    made: Callable[[], list[sources.Raw]] = lambda: work.raw("jsonl", 0.05)  # noqa: E731
    first = made()
    stamp = Path(first[0].path).stat().st_mtime_ns
    assert made() == first
    assert Path(first[0].path).stat().st_mtime_ns == stamp
    assert (
        json.loads(Path(tmp_path, "raw/jsonl-0.05/made.json").read_text())["raws"][0]["bytes"]
        == first[0].bytes
    )
