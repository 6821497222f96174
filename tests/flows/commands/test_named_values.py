"""Options of the form NAME=VALUE."""

from __future__ import annotations

import pytest

from cloze.flows.commands.base.options import named_values


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        ((), {}),
        (("a=1", "b=2"), {"a": "1", "b": "2"}),
        (("a=b=c", "d=s3://x/?e=f"), {"a": "b=c", "d": "s3://x/?e=f"}),
        (("a=1", "a=2"), {"a": "2"}),
    ],
)
def test_a_name_ends_at_the_first_equals_sign(
    texts: tuple[str, ...], values: dict[str, str]
) -> None:
    assert named_values("a=1")(texts) == values


@pytest.mark.parametrize("text", ["a", "a=", "=1", ""])
def test_a_name_and_a_value_are_needed(text: str) -> None:
    with pytest.raises(ValueError, match=r"must look like NAME=VALUE, such as wiki=2"):
        named_values("wiki=2")((text,))
