"""A/B sessions against scripted servers: what arms are told, stored and traced, and when a session ends."""

import itertools
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs
from msgspec.structs import replace

from ampbench import ab
from ampbench.ab import Lane, explain_sides, parse_arm
from ampbench.drive.planning import PlannedCase, find_workloads
from ampbench.errors import NothingToRunError, UsageError
from ampbench.judge.compare import compare
from ampbench.records.case import DeviceDescription
from ampbench.records.casts import CastPass, CastTrace, Operation
from ampbench.records.changes import Change, ChangeStatus, Comparison
from ampbench.records.kinds import CHECK
from ampbench.records.measured import Failure, Round
from ampbench.records.run import Selection, Settings
from ampbench.records.wire import Reply, Request, reply_with
from ampbench.store import read_run
from ampbench.studies.check import TASK, Checked
from tests.drive.test_rounds import Script
from tests.rule_probes import observation, probe
from tests.scripted_channel import got, measured
from tests.stored_runs import make_case, make_header

MLP = Selection(workloads=["mlp"], precisions=["fp32"], phases=["inference"], preset="tiny")
SETTINGS = Settings(rounds=32, builds=2, min_run_seconds=0.1)
ALL = ("time", "memory", "accuracy")

ENVIRONMENT = replace(
    make_header().environment, devices=[DeviceDescription(type="cpu", available=True, name="AMD EPYC", count=1)]
)

Answer = Callable[[Request, Mapping[str, str]], Reply]


class Servers:
    """Stands for `ServerChannel`: a round takes a millisecond, `factor` times that with FACTOR=factor, give or take."""

    def __init__(self) -> None:
        self.luck = random.Random(1)
        self.opened: list[Mapping[str, str]] = []
        self.answer: Answer | None = None
        self.versions: Mapping[str, str] = {}
        self.broken = False

    def __call__(self, python: str, preload: Any, variables: Mapping[str, str], paths: Any, folder: Any) -> "Server":
        self.opened.append(variables)
        if self.broken or "BROKEN" in variables:
            raise NothingToRunError(f"no worker could start with {python}: No module named 'torch'")
        return Server(self, variables)


class Server:
    def __init__(self, servers: Servers, variables: Mapping[str, str]):
        self.servers, self.variables = servers, variables

    def serve(self, request: Request) -> Reply:
        if request.task == "environment":
            version = next((v for name, v in self.servers.versions.items() if name in self.variables), "2.15.0")
            return reply_with(replace(ENVIRONMENT, torch_version=version))
        if self.servers.answer is not None:
            return self.servers.answer(request, self.variables)
        return self.timed(request)

    def timed(self, request: Request) -> Reply:
        if request.task == "casts":
            return reply_with(traced(request, self.variables))
        reply = measured(request)
        if request.task == "round":
            seconds = 1e-3 * float(self.variables.get("FACTOR", 1)) * self.servers.luck.gauss(1, 0.003)
            return reply_with(_with_samples(got("round", reply), seconds))
        return reply

    def close(self) -> None:
        pass


def traced(request: Request, variables: Mapping[str, str]) -> CastPass:
    """Return the trace of a step that computes in DTYPE."""
    dtype = variables.get("DTYPE", "bf16")
    ops = [
        Operation(index=0, name="aten.addmm", function="torch.linear", module="0", inputs=(dtype,), outputs=(dtype,))
    ]
    assert request.case is not None
    return CastPass(case_id=request.case.case_id, how="device", trace=CastTrace(ops=ops))


def _with_samples(one: Round, seconds: float) -> Round:
    return replace(one, samples=[[seconds]])


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    found = Servers()
    monkeypatch.setattr(ab, "ServerChannel", found)
    return found


def session(
    results: Path,
    baseline: list[str],
    candidate: list[str],
    selection: Selection = MLP,
    tell: Callable[[str], None] = lambda _: None,
    **plan: Any,
) -> tuple[Comparison, tuple[Path, Path, str]]:
    arms = parse_arm("--baseline", baseline), parse_arm("--candidate", candidate)
    watch = lambda _, __: None  # noqa: E731
    with ab.prepare(selection, SETTINGS, *arms) as prepared:
        files = ab.measure(prepared, ab.Plan(**{"kinds": ALL} | plan), results, "", ["ampbench"], watch, tell)
    return compare(*map(read_run, files[:2])), files


def time_of(comparison: Comparison) -> Change:
    return next(one for one in comparison.findings if one.kind == "time")


def test_a_slower_arm_is_found_after_sixteen_blocks_and_confirmed(servers: Servers, tmp_path: Path) -> None:
    comparison, (baseline, candidate, ended) = session(tmp_path, ["here"], ["FACTOR=1.1"])
    found = time_of(comparison)
    assert (found.status, ended) == (ChangeStatus.REGRESSED, "complete")
    assert found.change == pytest.approx(0.1, abs=0.01)
    assert found.blocks == 16
    assert comparison.interleaved
    for path in (baseline, candidate):
        assert sum(one.confirmation for one in read_run(path).rounds) == 10


def test_the_same_code_is_proven_unchanged_and_no_longer_measured(servers: Servers, tmp_path: Path) -> None:
    comparison, (baseline, _, ended) = session(tmp_path, ["here"], ["LABEL=same"])
    assert (time_of(comparison).status, ended) == (ChangeStatus.UNCHANGED, "complete")
    assert {one.round for one in read_run(baseline).rounds} == set(range(8))


def test_both_files_tell_their_session_their_arm_and_their_control(servers: Servers, tmp_path: Path) -> None:
    _, (baseline, candidate, _) = session(tmp_path, ["here"], ["FACTOR=1"])
    ours, theirs = read_run(baseline), read_run(candidate)
    assert ours.header.arm is not None
    assert theirs.header.arm is not None
    assert ours.header.arm.session == theirs.header.arm.session
    assert (ours.header.arm.name, theirs.header.arm.name) == ("baseline", "candidate")
    assert theirs.header.arm.settings == {"FACTOR": "1"}
    assert any(one.control for one in ours.rounds)
    assert not any(one.control for one in theirs.rounds)
    assert ours.memory
    assert theirs.divergence


def test_an_interruption_keeps_what_was_measured(servers: Servers, tmp_path: Path) -> None:
    count = itertools.count()

    def answer(request: Request, variables: Mapping[str, str]) -> Reply:
        if next(count) == 30:
            raise KeyboardInterrupt
        return measured(request)

    servers.answer = answer
    comparison, (baseline, candidate, ended) = session(tmp_path, ["here"], ["FACTOR=1.1"])
    assert ended == "interrupted"
    for path in (baseline, candidate):
        assert json.loads(path.read_text().splitlines()[-1])["footer"]["ended"] == "interrupted"
    assert time_of(comparison).status is ChangeStatus.INCONCLUSIVE
    assert read_run(baseline).rounds


def test_servers_that_do_not_start_any_more_end_the_session_and_lose_nothing(servers: Servers, tmp_path: Path) -> None:
    def answer(request: Request, variables: Mapping[str, str]) -> Reply:
        if request.task == "round":
            servers.broken = True
        return measured(request)

    servers.answer = answer
    with pytest.raises(NothingToRunError, match=r"see the measurements: ampbench compare "):
        session(tmp_path, ["here"], ["FACTOR=1.1"])
    for path in (tmp_path / "runs").iterdir():
        stored = read_run(path)
        assert stored.ended == "interrupted"
        assert stored.rounds


def test_without_times_a_single_block_shows_that_the_cases_run(servers: Servers, tmp_path: Path) -> None:
    comparison, (baseline, _, ended) = session(tmp_path, ["here"], ["FACTOR=1"], kinds=("memory", "accuracy"))
    assert ended == "complete"
    assert len(read_run(baseline).rounds) == 1
    assert next(one for one in comparison.findings if one.kind == "memory").status is ChangeStatus.UNCHANGED


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("trheads=2", "did you mean threads"),
        ("widht=64", "did you mean width"),
        ("precision=fp31", "did you mean fp32"),
        ("path=compiled-max-autotun", "did you mean compiled-max-autotune"),
        ("memory-format=chanels_last", "did you mean channels_last"),
        ("threads=none", "give a whole number"),
        ("width=none", "width"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_before_anything_starts(servers: Servers, given: str, said: str) -> None:
    arms = parse_arm("--baseline", []), parse_arm("--candidate", [given])
    with pytest.raises(UsageError, match=said), ab.prepare(MLP, SETTINGS, *arms):
        pass
    assert not servers.opened


def test_what_regressed_is_traced_in_both_arms_and_explained_whenever_the_files_are_compared(
    servers: Servers, tmp_path: Path
) -> None:
    told: list[str] = []
    comparison, (baseline, candidate, ended) = session(
        tmp_path, ["here"], ["FACTOR=1.1", "DTYPE=fp32"], tell=told.append
    )
    case_id = time_of(comparison).case.case_id
    assert comparison.explained[case_id].lines == ["linear: bf16 → fp32 in module 0"]
    assert told == ["tracing 1 regressed case on both sides"]
    for path in (baseline, candidate):
        lines = [next(iter(json.loads(line))) for line in path.read_text().splitlines()]
        assert lines[-2:] == ["casts", "footer"]
    assert ended == "complete"


def test_rules_are_probed_where_torch_differs_with_or_without_a_regression(servers: Servers, tmp_path: Path) -> None:
    def answer(request: Request, variables: Mapping[str, str]) -> Reply:
        if request.task == "rules":
            rule = "float32" if "NEW" in variables else "unlisted"
            return reply_with(probe(observation("aten::rms_norm", observed=rule), device="cpu"))
        if request.task == "check":
            name = msgspec.json.decode(request.asked, type=TASK.asked).check
            outcome = "defective" if name == "promote-other-half" and "NEW" not in variables else "good"
            return reply_with(Checked(device="cpu", check=name, outcome=outcome, how="device", program="aa"))
        return Server(servers, variables).timed(request)

    servers.answer = answer
    servers.versions = {"NEW": "2.12.0"}
    told: list[str] = []
    comparison, _ = session(tmp_path, ["here"], ["NEW=1"], tell=told.append)
    assert time_of(comparison).status is ChangeStatus.UNCHANGED
    assert [(one.op, one.before, one.after) for one in comparison.rule_changes] == [
        ("aten::rms_norm", "unlisted", "float32")
    ]
    assert told == ["probing autocast's rules and known defects on cpu on both sides, whose torch differs"]
    assert [(one.check, one.came) for one in comparison.defects] == [("promote-other-half", False)]


def test_a_server_that_starts_no_more_costs_the_explanation_alone(servers: Servers, tmp_path: Path) -> None:
    told: list[str] = []

    def tell(line: str) -> None:
        told.append(line)
        servers.broken = True

    comparison, (_, _, ended) = session(tmp_path, ["here"], ["FACTOR=1.1"], tell=tell)
    assert (time_of(comparison).status, ended) == (ChangeStatus.REGRESSED, "complete")
    assert told[-1].startswith("no more can be explained: no worker could start")


CASES = [make_case(precision) for precision in ("fp32", "bf16_autocast", "fp16_autocast")]


def side(name, script, kept):
    source = find_workloads("mlp")[0]
    cases = {case.case_id: PlannedCase(case=case, source=source) for case in CASES}
    return Lane(name, cases, Settings(), script.open, kept.append)


def explain(sides, case_ids, devices, tell, versions=("2.15.0", "2.15.0")):
    environments = [structs.replace(make_header().environment, torch_version=version) for version in versions]
    explain_sides(sides, environments, case_ids, devices, tell)


def nothing_seen(request: Request) -> Reply:
    return reply_with(CastPass(case_id=request.case.case_id, how="device", trace=CastTrace()))


def test_a_server_whose_worker_was_killed_is_replaced_and_the_other_side_is_not_asked():
    def answer(request: Request) -> Reply:
        if request.case is CASES[0]:
            return Reply(failure=Failure(case_id=request.case.case_id, stage="casts", cause="killed", message="gone"))
        return nothing_seen(request)

    ours, theirs, told = Script(answer), Script(nothing_seen), []
    both = [side("baseline", ours, []), side("candidate", theirs, [])]
    explain(both, [case.case_id for case in CASES], [], told.append)
    assert (ours.opened, ours.closed, len(theirs.asked)) == (3, 3, 2)
    assert told[1:] == [f"could not be traced: {CASES[0].case_id} in the baseline: killed: gone"]


def test_rules_are_not_probed_where_both_sides_have_one_torch_and_a_probe_that_dies_is_told():
    def dies(request: Request) -> Reply:
        return Reply(failure=Failure(case_id="", stage="rules", cause="crash", message="signal 6"))

    one, told = Script(dies), []
    explain([side("baseline", one, []), side("candidate", one, [])], [], ["cpu"], told.append)
    assert (one.opened, told) == (0, [])
    explain([side("baseline", one, []), side("candidate", one, [])], [], ["cpu"], told.append, ("2.15.0", "2.16.0"))
    assert told[1] == "autocast on cpu could not be probed in the baseline: crash: signal 6"
    assert one.opened == one.closed


def test_known_defects_are_looked_for_in_turns_where_torch_differs_and_a_crash_is_a_result():
    def answer(request: Request) -> Reply:
        if request.task != CHECK:
            return Reply(failure=Failure(case_id="", stage="rules", cause="crash", message="signal 6"))
        name = msgspec.json.decode(request.asked, type=TASK.asked).check
        if name == "promote-other-half":
            return Reply(failure=Failure(case_id="", stage="check", cause="crash", message="signal 11"))
        return reply_with(Checked(device="cpu", check=name, outcome="good", how="device", program="aa"))

    told, kept = [], ([], [])
    both = [side("baseline", Script(answer), kept[0]), side("candidate", Script(answer), kept[1])]
    explain(both, [], ["cpu"], told.append, ("2.15.0", "2.16.0"))
    assert "probing autocast's rules and known defects on cpu on both sides, whose torch differs" in told
    assert [one.check for one in kept[0]] == [one.check for one in kept[1]]
    assert len(kept[0]) >= 20
    (crashed,) = [one for one in kept[0] if one.outcome != "good"]
    assert (crashed.check, crashed.outcome, crashed.why) == ("promote-other-half", "not shown here", "crash: signal 11")
