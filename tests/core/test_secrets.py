"""Secrets are masked wherever they stand; what only looks a little like one stays."""

from __future__ import annotations

from typing import Any

import pytest

from cloze.core.secrets import holds_secret, redact

# Names in public reports of secrets that were logged
NAMES = """PGPASSWORD MYSQL_PWD DB_PASS smtp_pass SECRET_KEY MINIO_SECRET_KEY s3_secret_key secretKey
clientSecret authToken apiKey SharedAccessKey passwords api_keys PASSWORD1 ssh_key encryption_key
signing_key connection_string AZURE_STORAGE_CONNECTION_STRING authorization Authorization bearer_token
SLACK_WEBHOOK_URL webhook cookie session_token""".split()
TEXTS = (  # forms in such reports
    "host=db user=cloze password=hunter2 dbname=mlflow",
    '{"password": "hunter2"}',
    "{'api_key': 'hunter2', 'x': 1}",
    "postgresql://cloze:p@hunter2@db/mlflow",
    "X-Api-Key: hunter2",
    "https://discord.com/api/webhooks/1/hunter2",
    "https://x.webhook.office.com/webhookb2/hunter2",
    "https://api.telegram.org/bot123:hunter2/send",
    "github_pat_11AAAAAAA0hunter2hunter2",
    "nvapi-hunter2hunter2hunter2",
    "AIzahunter2hunter2hunter2hunter2",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.hunter2hunter2",
)


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
        *({name: "hunter2"} for name in NAMES),
        *TEXTS,
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
            "authority": "city",
            "secretary": "Jane Doe",
            "key": "text",
            "keys": ["a"],
            "sort_key": "title",
            "bypass": "yes",
            "compass": "north",
            "passage": "It is a secret: password.",
            "max_token": 5,
            "sep_token": 102,
            "passes": 3,
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


def test_a_password_of_digits_is_masked() -> None:
    assert redact({"password": 12345678, "smtp": {"db_password": 0.5}, "seed": 3}) == {
        "password": "***", "smtp": {"db_password": "***"}, "seed": 3
    }  # fmt: skip


@pytest.mark.parametrize("name", ["PGPASSWORD", "MINIO_SECRET_KEY", "SMTP_PASS", "DISCORD_WEBHOOK"])
def test_secrets_of_the_environment_of_any_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "correct-horse")
    assert redact("it is correct-horse") == "it is ***"


def test_what_the_environment_keeps_secret_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "correct-horse")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/home/me/key.json")
    assert redact({"note": "it is correct-horse, see /home/me/key.json"}) == {
        "note": "it is ***, see /home/me/key.json"
    }


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("postgresql://cloze:hunter2@db/mlflow", "postgresql://***@db/mlflow"),
        ("s3://:hunter2@b and gs://k:@c", "s3://***@b and gs://***@c"),
        ("https://hunter2@x http://hunter2@y", "https://***@x http://***@y"),
        ("git://t@a ssh://t@b redis://t@c rediss://t@d", "git://***@a ssh://***@b redis://***@c rediss://***@d"),
        ("x?token=a;b=c&my.sig=d e", "x?token=***;b=c&my.sig=*** e"),
        ("x?signature=a&Api-Key=b", "x?signature=***&Api-Key=***"),
        ("env=AWS_SECRET_ACCESS_KEY=abc,X=1", "env=AWS_SECRET_ACCESS_KEY=***"),
        ("HF_TOKEN=abc MY_API_KEY=x CREDENTIALS=y AUTH=z", "HF_TOKEN=*** MY_API_KEY=*** CREDENTIALS=*** AUTH=***"),
        ("--my-password=abc --token def --max_tokens 5", "--my-password=*** --token *** --max_tokens 5"),
        ("https://hooks.slack.com/workflows/T0/x", "https://hooks.slack.com/workflows/***"),
        ("Bearer abcdefgh, Bearer abc", "Bearer ***, Bearer abc"),
        ("Authorization: Basic abcdefgh=", "Authorization: Basic ***"),
        ("hf_abcdefghijkl ghp_abcdefghijkl glpat-abcdefghijkl xoxb-abcdefghijkl", "*** *** *** ***"),
        ("sk-abcdefghijkl AKIAABCDEFGHIJKL ASIAABCDEFGHIJKL hf_short", "*** *** *** hf_short"),
        ("-----BEGIN EC PRIVATE KEY-----\nabc\n-----END EC PRIVATE KEY-----\nrest", "***\nrest"),
        ("-----BEGIN PRIVATE KEY-----\ncut", "***"),
        (["--token", "abc", "x", "--pwd", 7], ["--token", "***", "x", "--pwd", 7]),
        (("--auth", "a"), ["--auth", "***"]),
        ({"token": ["a", "[MASK]"], "n": {"passwd": "b"}}, {"token": ["***", "[MASK]"], "n": {"passwd": "***"}}),
        ({"secret_id": "a", "key.value": "b", "token_string": "c", "x-credential": "d"},
         {"secret_id": "***", "key.value": "b", "token_string": "***", "x-credential": "***"}),
        ({"private-key": "", "access_key": "</s>", "account_key": "k", "passphrase": "p"},
         {"private-key": "", "access_key": "</s>", "account_key": "***", "passphrase": "***"}),
    ],
)  # fmt: skip
def test_what_is_left_of_a_text_with_secrets(value: Any, shown: Any) -> None:
    assert redact(value) == shown
    assert holds_secret(value) is (shown != (list(value) if isinstance(value, tuple) else value))


def test_secrets_of_the_environment_are_long_ones_the_longest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_TOKEN", "12345678")
    monkeypatch.setenv("OTHER_PASSWORD", "12345678-and-more")
    monkeypatch.setenv("SHORT_SECRET", "abcdefg")
    monkeypatch.setenv("PLAIN", "xyzxyzxyz")
    text = "12345678 12345678-and-more abcdefg xyzxyzxyz"
    assert redact(text) == "*** *** abcdefg xyzxyzxyz"
    assert holds_secret({"note": text})
    assert not holds_secret({"note": "abcdefg", "steps": 3})


def test_a_secret_is_masked_where_a_message_repeats_it() -> None:
    """S3's client quotes the bucket, `user:password@host`, beside the URL."""
    told = 's3://me:hunter2hunter2@h/x cannot be reached (Invalid bucket "me:hunter2hunter2@h")'
    assert redact(told) == 's3://***@h/x cannot be reached (Invalid bucket "***@h")'
    assert redact("?token=abc; abc") == "?token=***; abc"  # too short to be known again
