"""Secrets are masked wherever they stand; what only looks a little like one stays."""

from __future__ import annotations

from typing import Any

import pytest

from cloze.core.secrets import redact


@pytest.mark.parametrize(
    "value",
    [
        {"notify": {"password": "hunter2"}},
        {"notify.smtp-password": "hunter2"},
        {"hf_token": "hunter2"},
        {"aws_secret_access_key": "hunter2"},
        {"account.api-key": "hunter2"},
        "postgresql://cloze:hunter2@db/mlflow",
        "https://hunter2@github.com/x/y",
        "https://store/x?part=1&X-Amz-Signature=hunter2",
        "https://account.blob/x?sv=1;sig=hunter2",
        ["--s3_secret_access_key=hunter2", "--region=eu"],
        ("--password", "hunter2"),
        "Authorization: Basic hunter2hunter2",
        "https://hooks.slack.com/services/T0/B0/hunter2",
        "hf_hunter2hunter2hunter2",
        "-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_a_secret_is_masked(value: Any) -> None:
    shown = str(redact(value))
    assert "hunter2" not in shown
    assert "***" in shown


@pytest.mark.parametrize(
    "value",
    [
        {
            "tokens": 12,
            "tokenizer": "/data/tokenizer",
            "mask_token": "[MASK]",
            "email_token": "<email>",
            "author": "Jane Doe",
        },
        "abfs://container@account.dfs.core.windows.net/x",
        "s3://bucket/key/part-00000",
        ["--region=europe-west4", "--max_tokens", "512"],
        "Basic training of a token classifier; secret gardens",
        {"password": None, "steps": 3, "nested": [{"a": 1}, True]},
    ],
)
def test_the_rest_stays(value: Any) -> None:
    assert redact(value) == value


def test_what_the_environment_keeps_secret_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "correct-horse")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/home/me/key.json")
    assert redact({"note": "it is correct-horse, see /home/me/key.json"}) == {
        "note": "it is ***, see /home/me/key.json"
    }
