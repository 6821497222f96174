"""Prefect's form of every deployment, submitted in a real browser: an API call does not show what
it sends.
"""

from __future__ import annotations

import importlib
import inspect
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml
from playwright.sync_api import Locator, Page, sync_playwright

from cloze.core.artifacts import artifact
from cloze.flows.prefect.environment import PREFECT_YAML
from tests.conftest import REPOSITORY
from tests.operations.servers import Operations, cloze

CHROMIUM = shutil.which("chromium")
PATIENCE = 60_000.0  # milliseconds: the machine may have other work
QUIET = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    " --disable-component-update --disable-sync"
).split()

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        CHROMIUM is None, reason="Chromium is not installed; apt-get install chromium"
    ),
]


class Form:
    """The form of one deployment, freshly opened."""

    def __init__(self, page: Page, operations: Operations, name: str) -> None:
        self.page, self.operations, self.name = page, operations, name
        self.deployment = str(operations.call(f"/deployments/name/{name}/{name}")["id"])
        self.open()

    def open(self) -> None:
        root = self.operations.api.removesuffix("/api")
        self.page.goto(f"{root}/v2/deployments/deployment/{self.deployment}/run")
        last = "every" if self.name == "source-watch" else "retries"
        self.field(last).wait_for()

    def field(self, name: str) -> Locator:
        title = name.capitalize().replace("_", " ")
        return self.page.get_by_label(f"{title} (Optional)", exact=True)

    def fill(self, **values: object) -> None:
        """Type values into fields of numbers and of text."""
        for name, value in values.items():
            self.field(name).fill(str(value))

    def choose(self, list_name: str, option: str) -> None:
        """Choose an entry of a drop-down list. Args: list_name: the title of its values."""
        tabs = self.page.get_by_role("tab", name=list_name, exact=True)
        if tabs.count():
            tabs.first.click()
        self.page.get_by_role("button", name=f"Select {list_name}", exact=True).first.click()
        self.page.get_by_role("option", name=option, exact=True).click()
        self.page.keyboard.press("Escape")

    def override(self, text: str) -> None:
        """Replace the JSON of `overrides`."""
        self.page.locator(".cm-content").click()
        self.page.keyboard.press("Control+A")
        self.page.keyboard.type(text.rstrip("}"))  # the editor closes brackets itself

    def runs(self) -> list[dict[str, Any]]:
        """The flow runs that were started by the form."""
        wanted = {"deployments": {"id": {"any_": [self.deployment]}}}
        found = self.operations.call("/flow_runs/filter", wanted)
        return [run for run in found if not run["auto_scheduled"]]

    def submit(self) -> dict[str, Any]:
        """Submit a form that must be accepted; the flow run that it started."""
        status = 503
        while status == 503:  # SQLite was busy: the page says so, and the user submits again
            with self.page.expect_response("**/create_flow_run") as answer:
                self.page.get_by_role("button", name="Submit").click()
            status = answer.value.status
        assert status == 201, answer.value.text()
        (run,) = self.runs()
        return run

    def parameters(self) -> dict[str, Any]:
        """Submit a form that must be accepted; the parameters of the flow run that it started,
        which is removed.
        """
        run = self.submit()
        self.operations.delete(f"/flow_runs/{run['id']}")
        found: dict[str, Any] = run["parameters"]
        return found

    def refused(self, name: str) -> str:
        """Submit a form that must be refused; what the browser or Prefect says at the field."""
        self.page.get_by_role("button", name="Submit").click()
        output = str(self.field(name).evaluate("field => field.validationMessage"))
        output = output or self.field(name).locator("xpath=../following-sibling::*").inner_text()
        assert self.runs() == []
        return output


@dataclass(frozen=True, slots=True)
class Case:
    """How the form of a deployment is filled in. Attributes: wrong: a field, its value, and part of
    the refusal.
    """

    fill: Callable[[Form], None]
    sent: dict[str, Any]
    wrong: tuple[str, str, str]


NIGHT = {"night.promote_if": {"score": "better", "latency_ms": "<= 12"}}  # a limit has an object


def _full_run(form: Form) -> None:
    form.choose("Preset", "sample")
    form.fill(steps=7, learning_rate=0.0005, retries=0)
    form.choose("Stages", "dataset")  # the first of these lists is start_from
    form.override('{"dataset.mask_copies": 4}')


def _pretraining(form: Form) -> None:
    form.fill(seed=3, nodes=2, hostfile="/shared/hosts")
    form.choose("Launcher", "ssh")
    form.override('{"run.hang_seconds": 60}')
    form.fill(hostfile="", seed="")  # emptied again


def _night(form: Form) -> None:
    form.fill(since="7d", retries=1)
    form.override(json.dumps(NIGHT))


CASES = {
    "full-run": Case(
        _full_run,
        {
            "config": "sample",
            "steps": 7,
            "learning_rate": 0.0005,
            "retries": 0,
            "start_from": ["dataset"],
            "overrides": {"dataset.mask_copies": 4},
        },
        ("steps", "0", "greater than or equal to 1"),
    ),
    "data": Case(
        lambda form: form.fill(vocab_size=600, length=64),
        {"config": "demo", "vocab_size": 600, "length": 64},
        ("length", "7", "greater than or equal to 8"),
    ),
    "pretraining": Case(
        _pretraining,
        {
            "config": "demo",
            "nodes": 2,
            "launcher": "ssh",
            "overrides": {"run.hang_seconds": 60},
        },
        ("nodes", "1.5", "enter a valid value"),
    ),
    "finetuning": Case(
        lambda form: form.fill(epochs=2, task_seed=0),
        {"config": "demo", "epochs": 2, "task_seed": 0},
        ("task_learning_rate", "0", "0 is less than or equal to the minimum of 0"),
    ),
    "evaluation": Case(
        lambda form: form.fill(processes=2),
        {"config": "demo", "processes": 2},
        ("processes", "-1", "greater than or equal to 1"),
    ),
    "ablation": Case(
        lambda form: (form.choose("Preset", "bert-table6"), form.fill(seed=0))[1],
        {"config": "bert-table6", "seed": 0},
        ("seed", "-1", "greater than or equal to 0"),
    ),
    "nightly-evaluation": Case(
        _night,
        {"config": "night", "since": "7d", "retries": 1, "overrides": NIGHT},
        ("retries", "11", "less than or equal to 10"),
    ),
    "source-watch": Case(
        lambda form: (form.choose("Preset", "bert-table6"), form.fill(every=15))[1],
        {"config": "bert-table6", "every": 15},
        ("every", "0", "greater than or equal to 1"),
    ),
}


@pytest.fixture(scope="module")
def browser(operations: Operations) -> Iterator[Page]:
    """A page of a headless browser; the server has our deployments, and its worker
    starts nothing.
    """
    deployments = operations.call("/deployments/filter", {})
    if not {entry["name"] for entry in deployments} >= CASES.keys():
        done = cloze(operations, "deploy")
        assert done.returncode == 0, done.stderr
    _pause(operations, True)
    try:
        with sync_playwright() as playwright:
            chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
            page = chromium.new_page(viewport={"width": 1200, "height": 2000})
            page.set_default_timeout(PATIENCE)
            yield page
            chromium.close()
    finally:
        _pause(operations, False)


def _pause(operations: Operations, is_paused: bool) -> None:
    """Whether the worker leaves runs alone."""
    operations.call("/work_pools/cloze", {"is_paused": is_paused}, method="PATCH")


def default_values(name: str) -> dict[str, Any]:
    """Return the parameters of a deployment, over the defaults of its flow."""
    content = yaml.safe_load(PREFECT_YAML.read_text())
    (entry,) = (entry for entry in content["deployments"] if entry["name"] == name)
    module, _, function = entry["entrypoint"].rpartition(".")
    signature = inspect.signature(getattr(importlib.import_module(module), function).fn)
    defaults = {field: parameter.default for field, parameter in signature.parameters.items()}
    return {**defaults, **entry["parameters"]}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.soak
def test_a_form_is_submitted_untouched_filled_in_and_refused_where_a_value_is_wrong(
    operations: Operations, browser: Page, name: str
) -> None:
    case = CASES[name]
    form = Form(browser, operations, name)
    assert form.parameters().items() <= default_values(name).items()

    form.open()
    case.fill(form)
    assert {**default_values(name), **form.parameters()} == {**default_values(name), **case.sent}

    form.open()
    field, value, output = case.wrong
    form.fill(**{field: value})
    assert output in form.refused(field)


@pytest.mark.soak
def test_prefects_default_page_keeps_a_path_that_is_typed(
    operations: Operations, browser: Page
) -> None:
    root = operations.api.removesuffix("/api")
    form = Form(browser, operations, "full-run")
    browser.goto(f"{root}/deployments/deployment/{form.deployment}/run")
    browser.locator("textarea").first.click()
    browser.keyboard.press("Control+A")
    browser.keyboard.type("/shared/mine.yaml", delay=20)
    assert form.parameters()["config"] == "/shared/mine.yaml"


@pytest.mark.soak
def test_a_run_started_by_the_form_makes_what_was_filled_in(
    operations: Operations, browser: Page
) -> None:
    config = operations.home / "books.yaml"
    books = [{"kind": "books", "path": str(REPOSITORY / "samples" / "books")}]
    config.write_text(
        yaml.safe_dump(
            {"corpus": {"sources": books}, "vocab": {"size": 900}, "dataset": {"length": 64}}
        )
    )
    form = Form(browser, operations, "data")
    browser.get_by_role("tab", name="YAML file").click()
    browser.get_by_role("tabpanel", name="YAML file").locator("textarea").fill(str(config))
    form.fill(vocab_size=800, mask_copies=1, workers=1)
    run = form.submit()
    _pause(operations, False)
    state = operations.end(run["id"])
    assert (state["type"], state["message"]) == ("COMPLETED", "3 nodes built")
    made = operations.runs / "books"
    assert artifact.read_manifest(str(made / "vocab")).config["size"] == 800
    assert artifact.read_manifest(str(made / "dataset")).config["mask_copies"] == 1
