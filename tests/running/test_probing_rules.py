"""Probing in worker processes: one that ends takes its device's probe with it, and nothing else."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ampbench.errors import NothingToRunError, UsageError
from ampbench.records.environments import Environment
from ampbench.records.measurements import Failure
from ampbench.records.requests import Reply, Request
from ampbench.running.channel import ServerChannel
from ampbench.running.rules import probe_devices, where_observed
from tests.rule_probes import observation, probe

ENVIRONMENT = Environment(
    host="h", system="s", cpu="c", cpu_count=2, python_version="3.11", torch_version="2.15.0", numpy_version="2",
    threads=1,
)  # fmt: skip
CRASH = Failure(
    case_id="", stage="rules", cause="crash", message="ended by signal SIGABRT", frames=["terminate\ncalled"]
)
DYING = """
import os
import ampbench.explain.rules.probe as probe
lives = probe.probe_rules
probe.probe_rules = lambda device, *given, **named: os.abort() if device == "xpu" else lives(device, *given, **named)
"""


class Scripted:
    """A channel that gives what it was told to, and keeps what it was asked."""

    def __init__(self, replies: dict[str, Reply]):
        self.replies = replies
        self.asked: list[Request] = []
        self.closed = False

    def serve(self, request: Request) -> Reply:
        self.asked.append(request)
        return Reply(environment=ENVIRONMENT) if request.kind == "environment" else self.replies[request.device]

    def close(self) -> None:
        self.closed = True


def probed(channel: Scripted, *devices: str) -> tuple[object, list[str]]:
    return probe_devices(devices, ["float16"], ["mm"], 5.0, lambda: channel)


def test_each_device_is_asked_for_in_a_process_of_its_own() -> None:
    channel = Scripted({device: Reply(rules=probe(device=device)) for device in ("cpu", "xpu")})
    rules, problems = probed(channel, "cpu", "xpu")
    assert [one.device for one in rules.probes] == ["cpu", "xpu"]
    assert (rules.environment, problems, channel.closed) == (ENVIRONMENT, [], True)
    asked = channel.asked[1:]
    assert [(one.device, one.dtypes, one.ops, one.fresh) for one in asked] == [
        (device, ["float16"], ["mm"], True) for device in ("cpu", "xpu")
    ]


def test_a_crash_is_one_line_and_the_other_devices_are_told_of() -> None:
    channel = Scripted({"cpu": Reply(rules=probe(device="cpu")), "xpu": Reply(failure=CRASH)})
    rules, problems = probed(channel, "cpu", "xpu")
    assert [one.device for one in rules.probes] == ["cpu"]
    assert problems == ["autocast on xpu could not be probed: crash: ended by signal SIGABRT | terminate called"]


def test_if_no_probe_lives_there_is_nothing_to_tell() -> None:
    with pytest.raises(NothingToRunError, match="ended by signal SIGABRT"):
        probed(Scripted({"xpu": Reply(failure=CRASH)}), "xpu")


def test_an_op_that_is_not_known_is_the_users_error() -> None:
    channel = Scripted({"cpu": Reply(problem="unknown op 'mn'")})
    with pytest.raises(UsageError, match="unknown op 'mn'"):
        probed(channel, "cpu")
    assert channel.closed


def test_it_is_said_in_words_what_was_real() -> None:
    real = probe(observation(observed="float32", device="cpu"), device="cpu")
    fake = [probe(observation(observed="float32", how="fake tensors"), device=device) for device in ("cuda", "xpu")]
    assert where_observed([real, *fake]) == (
        "cpu observed on the device; cuda, xpu on fake tensors, not on hardware: this machine has none"
    )
    assert where_observed([real]) == "cpu observed on the device"


@pytest.fixture
def dying(tmp_path: Path) -> Callable[[], ServerChannel]:
    (tmp_path / "dying_probe.py").write_text(DYING)
    return lambda: ServerChannel(preload=["dying_probe"], paths=[tmp_path])


def test_a_worker_that_really_aborts_names_its_signal(dying: Callable[[], ServerChannel]) -> None:
    rules, problems = probe_devices(["cpu", "xpu"], ["bfloat16"], ["prelu", "softmax.int"], 60.0, dying)
    seen = {one.op: one.observed for one in rules.probes[0].observations}
    assert seen == {"aten::prelu": "lower_precision", "aten::softmax": "unlisted"}
    assert len(problems) == 1
    assert problems[0].startswith("autocast on xpu could not be probed: crash: ended by signal SIGABRT")


def test_a_probe_that_takes_too_long_is_ended(dying: Callable[[], ServerChannel]) -> None:
    with pytest.raises(NothingToRunError, match=r"cpu could not be probed: time-out: no result within 0\.05 s"):
        probe_devices(["cpu"], ["bfloat16"], [], 0.05, dying)
