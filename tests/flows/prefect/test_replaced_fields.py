"""A deploy names every field of a deployment that it sets back, whatever an operator changed."""

from __future__ import annotations

from typing import Any

import pytest
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.client.schemas.responses import DeploymentResponse

from cloze.flows.prefect.deploy import _differences

# Set by each deploy and made from the code, or kept and said elsewhere.
MADE = {
    "entrypoint", "infrastructure_document_id", "parameter_openapi_schema", "path", "paused",
    "schedules", "storage_document_id", "version", "version_info",
}  # fmt: skip


@pytest.mark.parametrize("field", sorted(DeploymentUpdate.model_fields.keys() - MADE))
def test_a_field_that_an_operator_can_change_is_said(field: str) -> None:
    values: dict[str, Any] = dict.fromkeys(DeploymentResponse.model_fields)
    before = DeploymentResponse.model_construct(**{**values, field: "as set in Prefect"})
    after = DeploymentResponse.model_construct(**values)
    (told,) = _differences({"data/data": before}, {"data/data": after})
    assert "data/data" in told
    assert field in told
    assert "as set in Prefect" in told
