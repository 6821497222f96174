"""Renew pictures of `docs/images`: `python docs/pictures.py report prefect-form …`.

Most are pages of a running `cloze ui` whose directory `--runs` names (default: runs); comments of
`PICTURES` say what must have run. Those of `FILES` show a page that a command wrote: `--file
page.html`. Pictures have at most 256 colours, which keeps them small. Look at each before it is
committed.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

IMAGES = Path(__file__).parent / "images"


class Servers:
    """Addresses of a running `cloze ui`, and requests to its servers with its login."""

    def __init__(self, runs: Path) -> None:
        state = json.loads((runs / ".servers" / "state.json").read_text())
        self.page, self.prefect, self.mlflow = state["page"], state["prefect"], state["mlflow"]
        self.key = b64encode(Path(state["login"]).read_bytes()).decode()

    def found(self, address: str, **body: Any) -> Any:
        """Return the answer to a search."""
        headers = {"Authorization": f"Basic {self.key}", "Content-Type": "application/json"}
        request = urllib.request.Request(address, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def newest(self, kind: str, **filters: Any) -> str:
        """Return the id of Prefect's newest object of a kind, such as `flow_runs`."""
        order = {} if kind == "deployments" else {"sort": "EXPECTED_START_TIME_DESC"}
        return str(self.found(f"{self.prefect}/api/{kind}/filter", **filters, **order)[0]["id"])

    def training(self) -> str:
        """Return MLflow's page of the newest pretraining."""
        runs = self.found(
            f"{self.mlflow}/api/2.0/mlflow/runs/search",
            experiment_ids=["1"], filter="tags.`cloze.stage` = 'pretrain'", max_results=1,
        )["runs"]  # fmt: skip
        return f"{self.mlflow}/#/experiments/1/runs/{runs[0]['info']['run_id']}"


class Picture(NamedTuple):
    """Address of a page, size of the window in pixels, and a text to click."""

    address: Callable[[Servers], str]
    width: int
    height: int
    click: str = ""


def _named(name: str) -> dict[str, Any]:
    return {"name": {"any_": [name]}}


MODE = "?workflowType=machine_learning"
RETRIED = {"flow_runs": {"run_count": {"gt_": 1}}}
PICTURES = {
    "trend": Picture(lambda at: f"{at.page}/trend", 1000, 1560),  # after three nights
    "report": Picture(lambda at: f"{at.page}/report/demo", 1100, 2480),
    "shared-runs": Picture(lambda at: at.page, 1280, 480),  # of two accounts
    # of the other account, by `cloze ui --dashboard-only --dashboard-port 8091`
    "shared-runs-colleague": Picture(lambda at: "http://127.0.0.1:8091", 1280, 540),
    "prefect-form": Picture(
        lambda at: (
            f"{at.prefect}/deployments/deployment/"
            f"{at.newest('deployments', deployments=_named('full-run'))}/run"
        ),
        800,
        940,
    ),
    "prefect-node": Picture(  # of the newest training
        lambda at: (
            f"{at.prefect}/runs/task-run/{at.newest('task_runs', task_runs=_named('pretrain'))}"
        ),
        1200,
        620,
        "Logs",
    ),
    "prefect-rerun": Picture(  # of the newest run that was retried
        lambda at: f"{at.prefect}/runs/flow-run/{at.newest('flow_runs', **RETRIED)}", 1200, 480
    ),
    "mlflow-metrics": Picture(lambda at: f"{at.training()}/model-metrics{MODE}", 1280, 620),
    "registry": Picture(lambda at: f"{at.mlflow}/#/models/cloze{MODE}", 1280, 800),  # after a night
}
FILES = {  # pages of `cloze attention --html`
    "attention-head": Picture(lambda at: "", 1000, 650),
    "attention-layers": Picture(lambda at: "", 1000, 893, "All layers"),
}


def main() -> None:
    """Open each page, click what is to be clicked, and write the picture."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=[*PICTURES, *FILES], metavar="NAME")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="of the `cloze ui`")
    parser.add_argument("--file", type=Path, help="page for a picture of FILES")
    parser.add_argument("--wait", type=float, default=6, help="seconds after each page and click")
    given = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        for name in given.names:
            _renew(browser, name, given)
        browser.close()


def _renew(browser: Any, name: str, given: argparse.Namespace) -> None:
    from PIL import Image

    wait, picture = 1000 * given.wait, (PICTURES | FILES)[name]
    page = browser.new_page(
        viewport={"width": picture.width, "height": picture.height}, reduced_motion="reduce"
    )
    page.set_default_timeout(120_000)
    if name in FILES:
        page.goto(given.file.resolve().as_uri())
    else:
        at = Servers(given.runs)
        for server in (at.page, at.prefect, at.mlflow):  # each stores what its pages need
            page.goto(f"{server}/cloze-login#{at.key}", wait_until="commit")
            page.wait_for_timeout(wait / 3)
        page.goto(picture.address(at))
    page.wait_for_timeout(wait)
    if picture.click:
        page.get_by_text(picture.click, exact=True).first.click()
        page.wait_for_timeout(wait)
    shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    # The median cut keeps the page's own background; the other methods tint it.
    few = shot.quantize(256, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    few.save(IMAGES / f"{name}.png", optimize=True)
    page.close()


if __name__ == "__main__":
    main()
