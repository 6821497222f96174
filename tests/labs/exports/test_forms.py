"""The options of `export` name the forms in the table, and each says what it is for."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from cloze.core.errors import UsageError
from cloze.model.hub.config import FORMS, ExportConfig


def choices(annotation: Any) -> set[str]:
    """The texts of a Literal, also beside None."""
    parts = get_args(annotation)
    return {p for p in parts if isinstance(p, str)}.union(*(choices(p) for p in parts))


def test_the_options_name_every_form() -> None:
    fields = ExportConfig.model_fields
    named = choices(fields["format"].annotation) | choices(fields["export_as"].annotation)
    assert set(FORMS) <= named
    for name in FORMS:
        form = FORMS[name]
        assert (form.add is None) != (form.export is None), name
        assert name in choices(fields["format" if form.add else "export_as"].annotation)


def test_a_form_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(UsageError, match=r"form of an export \('onx'\) is unknown.*onnx"):
        FORMS.find("onx")
