"""Processes of a data stage that stand still: the driver, its workers, both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from cloze.pipeline.runners.fan_out import fan_out
from tests.checkout import import_path
from tests.conftest import REPOSITORY
from tests.operations.stopping import Row
from tests.pipeline.runners import units

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]
UNITS = 12
# Beam's workers ask each 20 s whether the driver lives, and wait 300 s for an answer; here 2.
IMPATIENT = """
import sys
if any("beam_worker" in word for word in sys.orig_argv):
    from apache_beam.runners.worker.channel_factory import GRPCChannelFactory as factory
    limit = "grpc.keepalive_timeout_ms"
    factory.DEFAULT_OPTIONS = [
        (name, 2000 if name == limit else value) for name, value in factory.DEFAULT_OPTIONS
    ]
"""


def drive(place: Path) -> None:
    """The driver's program."""
    begun = units.build(place / "out", workers=2)
    work = units.numbered(place / "units", UNITS, seconds=4.0)
    with begun.cleanup:
        found = fan_out(begun, "s", work, units.work, unit_name="units")
    (place / "found").write_text(json.dumps(len(found)))


@pytest.mark.parametrize("who", ["driver", "workers", "all"])
def test_a_data_stage_that_is_asleep(tmp_path: Path, who: str) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(IMPATIENT)
    code = (
        f"from tests.pipeline.runners import test_asleep_stage as here; from pathlib import Path;"
        f"here.drive(Path({str(tmp_path)!r}))"
    )
    path = f"{tmp_path / 'site'}{os.pathsep}{import_path(REPOSITORY)}"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": path}
    ) as driver:
        try:
            assert units.within(200, lambda: bool(list(tmp_path.glob("units/began-*"))))
            family = psutil.Process(driver.pid)
            asleep = {
                "driver": [family],
                "workers": family.children(recursive=True),
                "all": [family, *family.children(recursive=True)],
            }[who]
            for process in asleep:
                process.suspend()
            time.sleep(30)
            for process in reversed(asleep):
                process.resume()
            assert driver.wait(300) == 0
        finally:
            for process in (*psutil.Process().children(recursive=True),):
                process.kill()
    assert json.loads((tmp_path / "found").read_text()) == UNITS
    way = f"data stage asleep: {who}"
    Row(way, None, "–", "finished", "–", "–", "goes on by itself").keep()
