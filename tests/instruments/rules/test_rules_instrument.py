"""Probing in worker processes: one that ends takes its device's probe with it, and nothing else."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ampbench.drive.servers import ServerChannel
from ampbench.errors import UsageError
from ampbench.instruments.rules.instrument import new_rules_header, probe_device, probe_devices
from ampbench.records.kinds import RULES
from ampbench.records.measured import Failure
from ampbench.records.rules import RuleProbe, RulesAsked
from ampbench.records.wire import Reply, Request, reply_with
from tests.rule_probes import probe
from tests.scripted_channel import asked_in
from tests.stored_runs import make_header

CRASH = Failure(
    case_id="", stage="rules", cause="crash", message="ended by signal SIGABRT", frames=["terminate\ncalled"]
)
CRASHED = "autocast on xpu could not be probed: crash: ended by signal SIGABRT | terminate called"
DYING = """
import os
import ampbench.instruments.rules.measure as probe
lives = probe.probe_rules
probe.probe_rules = lambda device, *given, **named: os.abort() if device == "xpu" else lives(device, *given, **named)
"""


class Scripted:
    """A channel that gives what it was told to, and keeps what it was asked."""

    def __init__(self, replies: dict[str, Reply]):
        self.replies = replies
        self.asked: list[Request] = []

    def serve(self, request: Request) -> Reply:
        self.asked.append(request)
        if request.device not in self.replies:
            raise KeyboardInterrupt
        return self.replies[request.device]

    def close(self) -> None:
        pass


def probed(channel: Scripted, *devices: str) -> tuple[list[RuleProbe], list[str], str]:
    kept: list[RuleProbe] = []
    problems, ended = probe_devices(channel, devices, ["float16"], ["mm"], 5.0, kept.append)
    return kept, problems, ended


def test_each_device_is_asked_for_in_a_process_of_its_own() -> None:
    channel = Scripted({device: reply_with(probe(device=device)) for device in ("cpu", "xpu")})
    assert probed(channel, "cpu", "xpu") == ([probe(device="cpu"), probe(device="xpu")], [], "complete")
    assert [(one.device, asked_in(one), one.threads, one.fresh) for one in channel.asked] == [
        (device, RulesAsked(dtypes=["float16"], ops=["mm"]), 1, True) for device in ("cpu", "xpu")
    ]


def test_a_crash_is_one_line_and_the_other_devices_are_told_of() -> None:
    channel = Scripted({"cpu": reply_with(probe(device="cpu")), "xpu": Reply(failure=CRASH)})
    assert probed(channel, "xpu", "cpu") == ([probe(device="cpu")], [CRASHED], "complete")


def test_an_interruption_keeps_what_was_probed_before() -> None:
    channel = Scripted({"cpu": reply_with(probe(device="cpu"))})
    assert probed(channel, "cpu", "xpu", "cuda") == ([probe(device="cpu")], [], "interrupted")
    assert [one.device for one in channel.asked] == ["cpu", "xpu"]


def test_it_is_said_before_a_device_is_probed() -> None:
    said: list[str | RuleProbe] = []
    channel = Scripted({device: reply_with(probe(device=device)) for device in ("cpu", "xpu")})
    probe_devices(channel, ["cpu", "xpu"], ["float16"], [], 5.0, said.append, said.append)
    assert said == ["cpu", probe(device="cpu"), "xpu", probe(device="xpu")]


def test_an_op_that_is_not_known_is_the_users_error() -> None:
    with pytest.raises(UsageError, match="unknown op 'mn'"):
        probed(Scripted({"cpu": Reply(problem="unknown op 'mn'")}), "cpu")


def test_the_header_says_what_was_asked_for_and_that_nothing_is_measured() -> None:
    environment = make_header().environment
    header = new_rules_header(environment, ["cpu", "xpu"], 9.0, ["ampbench", "explain", "rules"])
    assert (header.explains, header.environment, header.selection.devices) == (RULES, environment, ["cpu", "xpu"])
    assert (header.settings.timeout_seconds, header.settings.threads) == (9.0, 1)
    assert header.command == ["ampbench", "explain", "rules"]


@pytest.fixture
def dying(tmp_path: Path) -> Iterator[Callable[..., RuleProbe | Failure]]:
    """Ask a real worker, which aborts where it is asked for an XPU."""
    (tmp_path / "dying_probe.py").write_text(DYING)
    with closing(ServerChannel(preload=["dying_probe"], paths=[tmp_path])) as channel:
        yield lambda *given: probe_device(channel, *given)


def test_a_worker_that_really_aborts_names_its_signal(dying: Callable[..., RuleProbe | Failure]) -> None:
    lived, died = (dying(device, ["bfloat16"], ["prelu", "softmax.int"], 60.0) for device in ("cpu", "xpu"))
    assert isinstance(lived, RuleProbe)
    seen = {one.op: one.observed for one in lived.observations}
    assert seen == {"aten::prelu": "lower_precision", "aten::softmax": "unlisted"}
    assert isinstance(died, Failure)
    assert (died.cause, died.message) == ("crash", "ended by signal SIGABRT")


def test_a_probe_that_takes_too_long_is_ended(dying: Callable[..., RuleProbe | Failure]) -> None:
    late = dying("cpu", ["bfloat16"], [], 0.05)
    assert isinstance(late, Failure)
    assert (late.cause, late.message) == ("time-out", "no result within 0.05 s (--timeout)")
