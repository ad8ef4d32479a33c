"""Searching cases for what to keep in fp32: what is planned and asked, what is stored at once, how a search goes on."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from ampbench.errors import UsageError
from ampbench.keeping.islands import islands, units_of
from ampbench.keeping.weighing import points
from ampbench.planning import PlannedCase
from ampbench.records.environments import DeviceDescription, Environment
from ampbench.records.keeping import KeepSearch, SearchSpace, Trial, Unit, Wanted, Weighed, Weighing
from ampbench.records.measurements import Failure, Skip
from ampbench.records.requests import Reply, Request
from ampbench.records.runs import KEEP_FP32, Explanation, Footer, Selection, Settings
from ampbench.running.keeping import prepare_keeping, search_cases, unsearched, wanted_by
from ampbench.store import RunWriter, StoredRun, read_run
from tests.stored_runs import make_header

ENVIRONMENT = Environment(
    host="bench", system="Linux", cpu="AMD EPYC", cpu_count=2, python_version="3.11.7", torch_version="2.4.6",
    numpy_version="2", threads=1,
    devices=[DeviceDescription(type="cpu", available=True, arithmetic={"bf16": "native"}, autocast_dtype="bf16")],
)  # fmt: skip
SPACE = SearchSpace(
    case_id="", units=[Unit(modules=[f"layer.{place}"], kind="Linear") for place in range(8)], containers=["", "layer"]
)
PLANTED = frozenset({2, 5})
WANTED = Wanted(max_error=1e-2, max_gradient_error=1e-1, max_trials=40)


class Searched:
    """A channel whose network errs unless both planted modules are kept, or does `instead`; keeps what it was asked."""

    def __init__(self, instead: Callable[[Request], Reply | None] = lambda _: None):
        self.instead = instead
        self.asked: list[Request] = []
        self.closed = 0

    def serve(self, request: Request) -> Reply:
        if request.kind == "environment":
            return Reply(environment=ENVIRONMENT)
        self.asked.append(request)
        assert request.case is not None
        return self.instead(request) or answer(request)

    def close(self) -> None:
        self.closed += 1

    def kinds(self) -> list[str]:
        return [request.kind for request in self.asked]


def answer(request: Request) -> Reply:
    assert request.case is not None
    case_id = request.case.case_id
    if request.kind == "space":
        return Reply(space=dataclasses.replace(SPACE, case_id=case_id))
    if request.kind == "weighing":
        sets = [Weighed(kept=kept, samples=[[1e-3]] * 6, peak_bytes=1) for kept in request.kept]
        return Reply(weighing=Weighing(case_id=case_id, weighed=sets))
    (kept,) = request.kept
    missing = len(PLANTED - units_of(SPACE, kept))
    error = 1e-3 * (9 - len(units_of(SPACE, kept))) / 9
    gradient = 2e-2 if request.case.phase == "training" else None
    if missing:
        return Reply(trial=Trial(case_id=case_id, kept=kept, nonfinite=missing))
    return Reply(trial=Trial(case_id=case_id, kept=kept, output_rel_l2=error, grad_rel_l2=gradient))


def searched(
    results: Path,
    channel: Searched,
    wanted: Wanted = WANTED,
    watch: Callable[[PlannedCase, Explanation | Failure | Skip | None], None] = lambda *_: None,
    **selected: list[str],
) -> StoredRun:
    """Return the run that searching what is selected leaves."""
    selection = Selection(**({"workloads": ["mlp"], "preset": "tiny"} | selected))  # type: ignore[arg-type]
    with prepare_keeping(selection, Settings(), open_channel=lambda: channel) as prepared:
        header = make_header(explains=KEEP_FP32, environment=ENVIRONMENT, selection=prepared.selection)
        with RunWriter.create(results, header, [planned.case for planned in prepared.plan]) as writer:
            search_cases(prepared, wanted, writer, watch)
    return read_run(writer.path)


def resumed(run: StoredRun, channel: Searched) -> StoredRun:
    """Return what a run becomes when it is gone on with."""
    writer, begun = RunWriter.reopen(run.path)
    with (
        writer,
        prepare_keeping(begun.header.selection, begun.header.settings, begun, open_channel=lambda: channel) as prepared,
    ):
        search_cases(prepared, wanted_by(begun), writer, lambda *_: None, begun)
    return read_run(run.path)


def interrupt_at(kind: str, count: int) -> Callable[[Request], Reply | None]:
    """Return what interrupts the `count`th request of a kind."""
    seen = {"": 0}

    def instead(request: Request) -> Reply | None:
        seen[""] += request.kind == kind
        if request.kind == kind and seen[""] == count:
            raise KeyboardInterrupt
        return None

    return instead


def only(run: StoredRun) -> KeepSearch:
    (search,) = run.searches.values()
    return search


def test_unless_told_otherwise_inference_in_the_devices_own_autocast_dtype_is_searched(tmp_path: Path) -> None:
    run = searched(tmp_path, Searched())
    assert [(case.precision, case.phase, case.path) for case in run.cases.values()] == [
        ("bf16_autocast", "inference", "eager")
    ]


def test_the_smallest_set_is_found_and_the_sets_around_it_are_weighed(tmp_path: Path) -> None:
    channel = Searched()
    run = searched(tmp_path, channel)
    search = only(run)
    assert (search.found, search.units, search.smallest) == (["layer.2", "layer.5"], 2, True)
    assert (search.max_error, search.max_gradient_error, search.objective) == (1e-2, None, "speed")
    assert channel.kinds()[0] == "space"
    assert channel.kinds()[-1] == "weighing"
    assert set(channel.kinds()[1:-1]) == {"trial"}
    assert search.weighing is not None
    assert (search.weighing.weighed[0].kept, search.weighing.weighed[-1].kept) == ([], [""])
    assert ["layer.2", "layer.5"] in [one.kept for one in search.weighing.weighed]
    case_id = search.case_id
    assert all(point.output_rel_l2 or not point.meets for point in points(search, SPACE, run.trials[case_id]))


def test_the_space_and_each_trial_are_stored_before_the_next_is_asked_for(tmp_path: Path) -> None:
    stored: list[tuple[str, int]] = []

    def look(request: Request) -> Reply | None:
        run = read_run(next((tmp_path / "runs").glob("*.jsonl")))
        stored.append((request.kind, len(run.spaces) + sum(map(len, run.trials.values()))))
        return None

    searched(tmp_path, Searched(look))
    assert [count for _, count in stored] == list(range(len(stored)))


def test_trials_are_numbered_and_what_is_wanted_is_stored_with_the_space(tmp_path: Path) -> None:
    run = searched(tmp_path, Searched())
    (trials,) = run.trials.values()
    assert [trial.number for trial in trials] == list(range(len(trials)))
    assert len({tuple(trial.kept) for trial in trials}) == len(trials)
    assert wanted_by(run) == WANTED


def test_the_trials_of_a_case_share_a_worker_and_the_weighing_has_its_own(tmp_path: Path) -> None:
    channel = Searched()
    searched(tmp_path, channel, phases=["inference", "training"])
    fresh = [request.fresh for request in channel.asked]
    assert fresh == [request.kind in ("space", "weighing") for request in channel.asked]


def test_gradients_are_bounded_in_training_only(tmp_path: Path) -> None:
    run = searched(
        tmp_path, Searched(), dataclasses.replace(WANTED, max_gradient_error=1e-2), phases=["inference", "training"]
    )
    inference, training = (run.searches[case_id] for case_id in run.cases)
    assert (inference.found, inference.max_gradient_error) == (["layer.2", "layer.5"], None)
    assert (training.found, training.max_gradient_error) == (None, 1e-2)


def test_a_budget_that_only_a_set_tried_for_the_picture_meets_is_met(tmp_path: Path) -> None:
    search = only(searched(tmp_path, Searched(), dataclasses.replace(WANTED, max_trials=1)))
    assert search.found == [""]
    assert (search.units, search.smallest, search.trials) == (8, False, 1)


@pytest.mark.parametrize("kind", ["space", "trial"])
def test_a_worker_that_dies_ends_the_search_of_its_case(kind: str, tmp_path: Path) -> None:
    def dying(request: Request) -> Reply | None:
        if request.case is None or request.kind != kind or request.case.phase == "training":
            return None
        return Reply(failure=Failure(case_id=request.case.case_id, stage=kind, cause="time-out", message="too long"))

    run = searched(tmp_path, Searched(dying), phases=["inference", "training"])
    failed, ok = run.cases
    assert (list(run.failures), list(run.searches), run.ended) == ([failed], [ok], "complete")
    assert run.failures[failed].stage == kind


def test_a_weighing_that_fails_loses_nothing_that_was_found(tmp_path: Path) -> None:
    def failing(request: Request) -> Reply | None:
        if request.kind != "weighing" or request.case is None:
            return None
        message = "no room"
        return Reply(
            failure=Failure(case_id=request.case.case_id, stage="weighing", cause="out of memory", message=message)
        )

    search = only(searched(tmp_path, Searched(failing)))
    assert (search.found, search.weighing) == (["layer.2", "layer.5"], None)
    assert search.notes == ["what sets cost was not measured: out of memory: no room"]


def test_sets_that_no_step_runs_with_are_not_weighed(tmp_path: Path) -> None:
    def refusing(request: Request) -> Reply | None:
        if request.kind == "trial" and request.case is not None and request.kept == [[]]:
            return Reply(trial=Trial(case_id=request.case.case_id, error="RuntimeError: mixed dtypes"))
        return None

    search = only(searched(tmp_path, Searched(refusing)))
    assert search.weighing is not None
    assert [] not in [one.kept for one in search.weighing.weighed]
    assert search.found == ["layer.2", "layer.5"]


@pytest.mark.parametrize(("kind", "count"), [("trial", 2), ("trial", 5), ("weighing", 1)])
def test_an_interrupted_search_goes_on_where_it_was_and_ends_as_if_it_had_not_been(
    kind: str, count: int, tmp_path: Path
) -> None:
    whole = searched(tmp_path / "whole", Searched())
    broken = searched(tmp_path / "broken", Searched(interrupt_at(kind, count)))
    assert (broken.ended, broken.searches, unsearched(broken)) == ("interrupted", {}, list(broken.cases))
    again = Searched()
    ended = resumed(broken, again)
    assert only(ended) == only(whole)
    assert ended.trials == whole.trials
    assert len(again.asked) == 1 + sum(map(len, whole.trials.values())) - sum(map(len, broken.trials.values()))
    assert again.asked[0].fresh
    assert [footer.ended for footer in ended.footers] == ["interrupted", "complete"]


def test_of_several_cases_only_those_that_lack_a_search_are_gone_on_with(tmp_path: Path) -> None:
    def interrupted(request: Request) -> Reply | None:
        if request.case is not None and request.case.phase == "training" and request.kind == "trial":
            raise KeyboardInterrupt
        return None

    broken = searched(tmp_path, Searched(interrupted), phases=["inference", "training"])
    again = Searched()
    ended = resumed(broken, again)
    assert {request.case.phase for request in again.asked if request.case} == {"training"}
    assert "space" not in again.kinds()
    assert list(ended.searches) == list(ended.cases)


def test_a_search_is_not_gone_on_with_in_another_environment(tmp_path: Path) -> None:
    broken = searched(tmp_path, Searched(interrupt_at("trial", 2)))
    header = dataclasses.replace(broken.header, environment=dataclasses.replace(ENVIRONMENT, host="other"))
    with (
        pytest.raises(UsageError, match="cannot be resumed here: its host was other"),
        prepare_keeping(
            header.selection, Settings(), dataclasses.replace(broken, header=header), open_channel=Searched
        ),
    ):
        pass


def test_a_search_whose_cases_are_others_now_is_not_gone_on_with(tmp_path: Path) -> None:
    broken = searched(tmp_path, Searched(interrupt_at("trial", 2)))
    selection = dataclasses.replace(broken.header.selection, phases=["training"])
    with (
        pytest.raises(UsageError, match="its selection now gives other cases"),
        prepare_keeping(selection, Settings(), broken, open_channel=Searched),
    ):
        pass


def test_a_run_that_broke_off_before_its_first_search_says_so(tmp_path: Path) -> None:
    broken = searched(tmp_path, Searched(interrupt_at("space", 1)))
    with pytest.raises(UsageError, match="broke off before any search began: begin a new one"):
        wanted_by(broken)


@pytest.mark.parametrize(
    ("selected", "message"),
    [
        ({"workloads": []}, r"of which workload\? Name one, as in `ampbench explain keep-fp32 mlp`"),
        ({"precisions": ["fp32"]}, "keep-fp32 asks what a low precision must leave in fp32, and fp32 is none"),
        ({"precisions": ["bf16_autocast", "tf32"]}, "and tf32 is none"),
        ({"paths": ["compiled"]}, "a compiled network does not run"),
    ],
)
def test_what_cannot_be_searched_is_refused(selected: dict[str, list[str]], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        searched(tmp_path, Searched(), **selected)


def test_who_watches_is_told_of_the_space_and_every_trial(tmp_path: Path) -> None:
    told: list[type] = []
    run = searched(tmp_path, Searched(), watch=lambda _, found: told.append(type(found)))
    (trials,) = run.trials.values()
    assert told == [type(None), SearchSpace, *[Trial] * len(trials), KeepSearch]


def test_a_footer_ends_each_session(tmp_path: Path) -> None:
    assert [type(footer) for footer in searched(tmp_path, Searched()).footers] == [Footer]


def test_the_names_asked_for_are_those_that_keep_a_container_whole(tmp_path: Path) -> None:
    channel = Searched()
    searched(tmp_path, channel)
    for request in channel.asked:
        for kept in request.kept:
            assert islands(SPACE, units_of(SPACE, kept)) == kept
