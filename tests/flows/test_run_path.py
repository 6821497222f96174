"""How much code a run passes before the first step of its work: a limit, so that it does not grow."""

from __future__ import annotations

from tests.tools import run_path

# Distinct functions and files of a graph of one stage, launched here. Of the preset `sample`, see
# tests/tools/run_path.py.
HEAD_FUNCTIONS, HEAD_FILES = 360, 60
RANK_FUNCTIONS, RANK_FILES = 30, 8


def test_a_run_passes_no_more_functions_before_its_first_step_than_it_did() -> None:
    counted = run_path.count(toy=True)
    head, rank = (counted[name][False] for name in (run_path.HEAD, run_path.RANK))
    names = {name for _, name in head}
    # what is counted is the whole way: command, config, graph, plan, record, claim, launch
    assert {"main", "load", "plan", "execute", "claim_directory", "LocalRanks._start"} <= names
    assert {"main", "run", "PipeReporter.__init__"} <= {name for _, name in rank}
    assert len(head) <= HEAD_FUNCTIONS, "merge functions, or take another way"
    assert len({file for file, _ in head}) <= HEAD_FILES
    assert len(rank) <= RANK_FUNCTIONS
    assert len({file for file, _ in rank}) <= RANK_FILES
