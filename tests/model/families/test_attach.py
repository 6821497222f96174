"""What is not in a network's weights is asked for by its modules: nobody knows their classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from cloze.model.families.models import attach
from cloze.pipeline import tokenizer
from tests.tiny_models import PIECES, tiny_model, write_tokenizer


class Asking(nn.Module):
    """Keeps what it is given."""

    given: tuple[Any, ...] = ()

    def attach(self, *given: Any) -> None:
        self.given = given


def test_each_module_that_asks_is_given_tokenizer_path_and_metadata(tmp_path: Path) -> None:
    pieces, first, inner = write_tokenizer(tmp_path), Asking(), Asking()
    network = nn.Sequential(nn.Linear(2, 2), first, nn.ModuleDict({"inner": inner}))
    attach(network, pieces, "there", {"name": "sst2"})
    assert [own.vocab_size for own, *_ in (first.given, inner.given)] == [len(PIECES)] * 2
    assert first.given[1:] == ("there", {"name": "sst2"})
    assert first.given[0] is inner.given[0], "it is read once"
    own = tokenizer.load(pieces)
    attach(network, own)
    assert first.given[0] is own
    assert first.given[1:] == ("", {})


@pytest.mark.parametrize("family", ["bert", "t5", "xlnet"])
def test_no_tokenizer_is_read_for_others(family: str, tmp_path: Path) -> None:
    network = tiny_model(family=family)
    before = {name: weight.clone() for name, weight in network.state_dict().items()}
    attach(network, str(tmp_path / "missing"))
    assert all(weight.equal(before[name]) for name, weight in network.state_dict().items())
