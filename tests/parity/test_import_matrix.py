"""Models of every class that transformers 5 has of an architecture are imported with the right
weights, or refused in a sentence. `benchmarks/import_matrix.py` does the same for other versions.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import import_matrix
from tests.slices import few

pytest.importorskip("transformers")

QUICK = ("bert", "xlm-roberta", "electra", "gpt2", "t5-v1.1")  # others share code with these
WRONG = {"wrong", "wrong export", "please report", "traceback"}


def wrong(types: list[str], directory: Path, *, export: bool, forms: tuple[str, ...]) -> list[str]:
    import_matrix.write(directory, types, forms)
    found = []
    for path in sorted(directory.iterdir()):
        outcome, said = import_matrix.outcome(path, export)
        assert said
        if outcome in WRONG:
            found.append(f"{path.name}: {outcome}: {said}")
    return found


@pytest.mark.parametrize("model_type", few(QUICK, "bert", "t5-v1.1"))
def test_every_class_is_imported_right_or_refused(model_type: str, tmp_path: Path) -> None:
    assert not wrong([model_type], tmp_path, export=False, forms=("fp32",))


@pytest.mark.soak
@pytest.mark.parametrize("model_type", import_matrix.TYPES)
def test_every_class_and_form_goes_there_and_back(model_type: str, tmp_path: Path) -> None:
    assert not wrong([model_type], tmp_path, export=True, forms=import_matrix.FORMS)
