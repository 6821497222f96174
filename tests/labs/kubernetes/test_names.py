"""A TrainJob's name is one that Kubernetes takes, whatever the directory of its artifact is called."""

from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cloze.flows.launch.protocol import LaunchSpec
from cloze.labs.kubernetes.manifest import name_of

LAUNCH = LaunchSpec(
    artifact="", directory="", job="", worker="cloze.model.worker", hosts=("",), counts=(1,),
    program={}, inputs={}, grace_seconds=1, grace_grows=False, device="cpu",
)  # fmt: skip
LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # the resource's own rule (RFC 1035)
POD = "-node-9999-0-abcde"  # what JobSet and Job add for a pod


@given(st.text(max_size=300) | st.text("aZ0-_./é ", max_size=60), st.integers(1, 10**6))
def test_any_directory_gives_a_label_with_room_for_its_pods(path: str, number: int) -> None:
    launch = replace(LAUNCH, artifact=path, directory=f"{path}/_logs/launches/{number}")
    name = name_of(launch)
    assert LABEL.fullmatch(name)
    assert len(name + POD) <= 63
    assert name != name_of(replace(launch, directory=f"{launch.directory}-again"))
