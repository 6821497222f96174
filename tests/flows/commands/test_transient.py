"""What a command without --out prints of the directory that ends with it: nothing."""

from __future__ import annotations

from cloze.flows.commands.base.stage_command import without_deleted


def test_no_path_of_a_deleted_directory_is_printed() -> None:
    content = {
        "artifact": "/tmp/cloze-1/evaluate",
        "predictions": "/tmp/cloze-1/evaluate/predictions.tsv",
        "task": "sst2",
        "metrics": {"accuracy": 0.5},
        "copy": "/home/me/predictions.tsv",
    }
    kept = without_deleted(content, "/tmp/cloze-1/evaluate")
    assert kept.keys() == {"task", "metrics", "copy"}
