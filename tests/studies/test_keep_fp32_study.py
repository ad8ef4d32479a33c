"""A search for modules to keep in fp32: what is planned, stored, resumed and concluded, and the code to paste."""

import copy
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from torch.utils._pytree import tree_map

from ampbench.core.precisions import PRECISIONS, SHORT_DTYPES
from ampbench.drive.planning import find_workloads
from ampbench.errors import UsageError
from ampbench.records.case import Case
from ampbench.records.wire import Reply, Request, reply_with
from ampbench.show.studies import lines as words
from ampbench.store import StoredRun, read_run
from ampbench.studies.keep_fp32 import (
    STUDY,
    Keep,
    KeepAsked,
    KeepSearch,
    Limits,
    Searched,
    SearchSpace,
    TimedSet,
    Timing,
    Trial,
    Unit,
    code,
    conclusions,
    islands,
    kept_sets,
    searches,
    share_of,
    units_of,
)
from ampbench.studies.work import lacking
from ampbench.worker.worker import Worker
from tests.scripted_channel import CPU, Scripted, asked_in, got, machine, make_request
from tests.studies.keep_searches import CASE, SPACE, TRIALS, searched, space_of, trial
from tests.studies.working import resumed, studied

NET = space_of(
    *([path] for path in ("stem", "layer1.a", "layer1.b", "layer10.conv", "layer10.deep.x", "layer10.deep.y", "fc")),
    containers=["", "layer1", "layer10", "layer10.deep"],
)
TRAINING = Limits(max_error=2e-3, max_gradient_error=1e-1)
UPDATES = Limits(max_error=2e-3, max_gradient_error=1e-1, min_update_kept=0.98)


@pytest.mark.parametrize(
    ("units", "named"),
    [
        ((), []),
        (range(7), [""]),
        ((6, 0, 3), ["stem", "layer10.conv", "fc"]),
        ((1, 2, 6), ["layer1", "fc"]),
        ((3, 4, 5), ["layer10"]),
        ((4, 5), ["layer10.deep"]),
    ],
)
def test_the_outermost_container_that_is_kept_whole_is_named(units: tuple[int, ...], named: list[str]) -> None:
    assert islands(NET, frozenset(units)) == named
    assert units_of(NET, named) == set(units)


def test_a_container_is_whole_only_with_the_units_it_shares_with_others() -> None:
    space = space_of(["a.x", "b.x"], ["a.y"], ["b.y"], ["b.z", "b.w"], containers=["", "a", "b", "unused"])
    assert islands(space, {1}) == ["a.y"]
    assert islands(space, {0, 1}) == ["a", "b.x"]
    assert islands(space, {2, 3}) == ["b.y", "b.z", "b.w"]
    assert islands(space, {0, 2, 3}) == ["a.x", "b"]


@given(st.data())
def test_the_units_of_islands_are_those_asked_for(data: st.DataObject) -> None:
    paths = [f"layers.{place // 3}.part{place % 3}" for place in range(12)]
    leaves = data.draw(st.lists(st.sampled_from(paths), unique=True, min_size=1))
    tied = data.draw(st.integers(0, len(leaves)))
    units = [leaves[:tied][::-1]] * bool(tied) + [[path] for path in leaves[tied:]]
    space = space_of(*units, containers=["", "layers", *(f"layers.{block}" for block in range(4))])
    chosen = data.draw(st.frozensets(st.integers(0, len(units) - 1)))
    named = islands(space, chosen)
    assert units_of(space, named) == chosen
    assert not any(inner.startswith(f"{outer}.") for outer in named for inner in named)


@pytest.mark.parametrize(
    ("limits", "errs", "share"),
    [
        (TRAINING, {"error": 2e-3, "grad_rel_l2": 5e-2}, 1.0),
        (TRAINING, {"error": 1e-3, "grad_rel_l2": 0.3}, 3.0),
        (TRAINING, {"error": 1e-3}, math.inf),
        (SPACE.limits, {"error": 1e-3}, 0.5),
        (SPACE.limits, {"nonfinite": 3}, math.inf),
        (Limits(max_error=0.0), {"error": 0.0}, 0.0),
        (Limits(max_error=0.0), {"error": 1e-9}, math.inf),
        (UPDATES, {"error": 0.0, "grad_rel_l2": 0.0, "update_kept": 0.96}, 2.0),
        (UPDATES, {"error": 0.0, "grad_rel_l2": 0.0, "update_kept": 1.1}, 0.0),
        (UPDATES, {"error": 0.0, "grad_rel_l2": 0.0, "update_nonfinite": 4}, math.inf),
        (UPDATES, {"error": 0.0, "grad_rel_l2": 0.0, "update_undefined": "no optimizer"}, 0.0),
    ],
)
def test_the_worst_of_errors_and_updates_decides(limits: Limits, errs: dict[str, Any], share: float) -> None:
    assert share_of(limits, trial(0, **errs)) == pytest.approx(share)


def test_sets_stand_by_size_with_what_they_err_and_cost() -> None:
    rows = kept_sets(searched("norm"))
    assert [(row.units, row.found, row.meets, row.refuted) for row in rows] == [
        (0, False, False, False), (1, True, True, False), (3, False, True, False), (4, False, True, False)
    ]  # fmt: skip
    norm = rows[1]
    assert norm.ratio is not None
    assert (norm.ratio.value, norm.ratio.low, norm.ratio.high) == pytest.approx((1.04, 1.04, 1.04))
    assert norm.timed.peak_bytes == (1 << 20) + 512
    assert (rows[2].timed, rows[2].ratio) == (TimedSet(), None)


def concluded(record: Searched) -> dict[Keep, Mapping[str, Any]]:
    """Return the facts of what is concluded by its code, the last of several of one."""
    statements = list(conclusions(CASE, record))
    assert words(statements)
    return {each.code: each.facts for each in statements}  # type: ignore[misc]


def test_what_is_kept_what_that_errs_and_what_it_costs_is_concluded() -> None:
    told = concluded(searched("norm"))
    assert list(told) == [Keep.FOUND, Keep.ERROR, Keep.MINIMAL, Keep.TIME, Keep.FASTER, Keep.PEAK]
    assert told[Keep.FOUND] == {"units": 1, "modules": 4, "trials": 4, "names": "norm"}
    assert told[Keep.ERROR] == {
        "what": "output", "reference": "fp64", "error": 1.9e-3, "before": 3.1e-2, "limit": 2e-3
    }  # fmt: skip
    assert told[Keep.TIME]["ratio"] == pytest.approx(1.04)
    assert told[Keep.FASTER]["ratio"] == pytest.approx(1.04 / 1.62)
    assert told[Keep.PEAK] == {"kept": (1 << 20) + 512, "none": 1 << 20, "all": 2 << 20}


def test_where_nothing_meets_the_budget_the_closest_is_named() -> None:
    tight = Limits(max_error=1e-8)
    told = concluded(searched(kept=None, limits=tight))
    assert list(told) == [Keep.MISSED, Keep.CLOSEST, Keep.ERROR]
    assert (told[Keep.MISSED]["trials"], told[Keep.CLOSEST]["names"], told[Keep.ERROR]["error"]) == (4, "all", 4e-7)
    untried = concluded(searched(kept=None, limits=tight, trials=TRIALS[:1]))
    assert (untried[Keep.MISSED]["untried"], untried[Keep.CLOSEST]["names"]) == (True, "none")


def test_a_search_that_did_not_end_tells_the_smallest_set_so_far() -> None:
    begun = Searched(space=SPACE, trials=TRIALS)
    assert concluded(begun)[Keep.UNFINISHED] == {"names": "norm", "units": 1, "modules": 4, "trials": 4}
    assert concluded(Searched(space=SPACE, trials=TRIALS[:1]))[Keep.UNFINISHED]["units"] == 0


def test_what_arrives_of_an_update_is_told_where_it_is_bounded() -> None:
    low, kept = {"grad_rel_l2": 0.0, "update_kept": 0.4}, {"grad_rel_l2": 0.0, "update_kept": 0.99}
    trials = [trial(0, error=1e-3, **low), trial(1, "", error=0.0), trial(2, "norm", error=1e-3, **kept)]
    told = concluded(searched("norm", trials=trials, limits=UPDATES))[Keep.UPDATE]
    assert told == {"share": 0.99, "before": 0.4, "limit": 0.98}
    unknown = [structs.replace(each, update_kept=None, update_undefined="no optimizer") for each in trials]
    assert concluded(searched("norm", trials=unknown, limits=UPDATES))[Keep.UPDATE]["why"] == "no optimizer"


MODEL = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 16))
        self.norm = torch.nn.LayerNorm(16)
        self.add_module("odd[0]*", torch.nn.Linear(16, 16))
        self.head = torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.get_submodule("odd[0]*")(self.norm(x + self.body(x))))


class Tokens(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(50_000, 16)
        self.body = Net()

    def forward(self, ids, weights=None):
        rows = self.embed(ids).sum(dim=1)
        return self.body(rows if weights is None else rows * weights)


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Net()
        self.norm = torch.nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(torch.nn.functional.dropout(self.body(x), training=self.training))


def normed():
    network = Normed()
    torch.nn.init.constant_(network.norm.running_var, 4.0)
    return network, torch.randn(8, 16)


def named():
    return Tokens(), {"ids": torch.randint(2050, 50_000, (8, 5)), "weights": torch.rand(8, 1)}
"""


def lines(precision: str, *kept: str, **case: Any) -> list[str]:
    return code(structs.replace(CASE, precision=precision, **case), searched(*kept))["torch"].splitlines()


def test_a_pure_network_is_kept_before_it_is_moved_and_gives_back_its_own_dtype() -> None:
    assert lines("bf16_pure", "norm") == [
        "import torch",
        "",
        "import ampbench",
        "",
        'ampbench.keep_fp32(model, "norm", cast_back=True)',
        "model = model.to(torch.bfloat16)  # after keep_fp32: what is kept stays fp32",
    ]


def test_names_that_would_be_patterns_are_escaped_and_quotes_survive() -> None:
    text = "\n".join(lines("fp16_autocast", "odd[0]*", 'a"b'))
    assert '"odd[[]0][*]"' in text
    assert '"a\\"b"' in text
    compile(text, "pasted", "exec")


def test_many_names_have_a_line_each() -> None:
    names = [f"encoder.layers.{place}.self_attention" for place in range(9)]
    text = lines("fp16_pure", *names)
    first = text.index("ampbench.keep_fp32(") + 1
    assert text[first : first + 10] == ["    model,", *(f'    "{name}",' for name in names)]
    assert text[first + 10 : first + 12] == ["    cast_back=True,", ")"]
    assert max(map(len, text)) <= 100
    compile("\n".join(text), "pasted", "exec")


def floating(tree: Any, dtype: torch.dtype) -> Any:
    return tree_map(lambda x: x.to(dtype) if x.is_floating_point() else x, tree)


def called(network: torch.nn.Module, inputs: Any) -> torch.Tensor:
    return network(**inputs) if isinstance(inputs, dict) else network(inputs)


@pytest.mark.parametrize(
    ("make", "precision", "kept"),
    [
        ("normed", "fp16_pure", ["norm", "body.odd[0]*"]),
        ("named", "bf16_pure", ["body.norm"]),
        ("named", "fp16_autocast", ["body.norm"]),
    ],
)
def test_pasted_into_a_program_it_errs_what_the_trial_erred(
    make: str, precision: str, kept: list[str], tmp_path: Path
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (source,) = find_workloads(f"{tmp_path}/model.py:{make}")
    row = PRECISIONS[precision]
    short = SHORT_DTYPES[row.storage]
    case: Case = structs.replace(CASE, workload=source.name, family="user", precision=precision, input_dtype=short)
    tried = got("trial", Worker().serve(make_request("trial", source=source, case=case, kept=kept, threads=1)))
    assert tried.output_rel_l2
    program: dict[str, Any] = {}
    exec(MODEL, program)
    torch.manual_seed(0)
    network, inputs = program[make]()
    with torch.inference_mode():
        expected = called(copy.deepcopy(network).double().eval(), floating(inputs, torch.float64))
        program["model"] = network.eval()
        exec(code(case, searched(*kept))["torch"], program)
        with torch.autocast("cpu", dtype=getattr(torch, row.autocast or "", None), enabled=bool(row.autocast)):
            output = called(program["model"], floating(inputs, getattr(torch, row.storage)))
    assert float((output.double() - expected).norm() / expected.norm()) == pytest.approx(tried.output_rel_l2, rel=1e-6)


ENVIRONMENT = machine(CPU)
EIGHT = SearchSpace(
    case_id="",
    units=[Unit(modules=[f"layer.{place}"], kind="Linear") for place in range(8)], containers=["", "layer"],
    limits=Limits(max_error=1e-2),
    weights_digest="ww", inputs_digest="ii",
)  # fmt: skip
PLANTED = frozenset({2, 5})
WANTED = KeepAsked(max_error=1e-2, max_gradient_error=1e-1, max_trials=40)


def network(instead: Callable[[Request], Reply | None] = lambda _: None) -> Scripted:
    """Return a channel whose network errs unless both planted modules are kept, or does `instead`."""
    return Scripted(lambda request: instead(request) or answer(request), ENVIRONMENT)


def kinds(channel: Scripted) -> list[str]:
    return [request.task for request in channel.asked]


def answer(request: Request) -> Reply:
    assert request.case is not None
    case_id = request.case.case_id
    if request.task == "space":
        return reply_with(structs.replace(EIGHT, case_id=case_id, limits=asked_in(request)))
    if request.task == "timing":
        sets = [structs.replace(timed, samples=[[1e-3]] * 6, peak_bytes=1) for timed in asked_in(request).sets]
        return reply_with(Timing(sets=sets))
    kept = asked_in(request).kept
    missing = len(PLANTED - units_of(EIGHT, kept))
    error = 1e-3 * (9 - len(units_of(EIGHT, kept))) / 9
    gradient = 2e-2 if request.case.phase == "training" else None
    if missing:
        return reply_with(Trial(case_id=case_id, kept=kept, nonfinite=missing))
    return reply_with(Trial(case_id=case_id, kept=kept, output_rel_l2=error, grad_rel_l2=gradient))


def interrupt_at(kind: str, count: int) -> Callable[[Request], Reply | None]:
    """Return what interrupts the `count`th request of a kind."""
    seen = {"": 0}

    def instead(request: Request) -> Reply | None:
        seen[""] += request.task == kind
        if request.task == kind and seen[""] == count:
            raise KeyboardInterrupt
        return None

    return instead


def only(run: StoredRun) -> KeepSearch:
    (search,) = run.of(KeepSearch).values()
    return search


def test_what_is_found_is_minimal_and_timed_beside_none_and_all(tmp_path: Path) -> None:
    channel = network()
    run = studied(STUDY, tmp_path, channel, WANTED, phases=["inference"])
    search = only(run)
    assert (search.kept, search.minimal) == (["layer.2", "layer.5"], True)
    assert run.of(SearchSpace)[search.case_id].limits == Limits(max_error=1e-2)
    assert (kinds(channel)[0], kinds(channel)[-1]) == ("space", "timing")
    assert set(kinds(channel)[1:-1]) == {"trial"}
    assert search.timing is not None
    assert [each.kept for each in search.timing.sets] == [[], ["layer.2", "layer.5"], [""]]


def trials_of(run: StoredRun, batch: int = 0) -> list[Trial]:
    (trials,) = run.several_of(Trial).values()
    return [trial for trial in trials if trial.batch == batch]


def on_batch(batch: int, *kept: str, error: float) -> Callable[[Request], Reply | None]:
    """Return what lets a set err so much on a fresh batch."""

    def instead(request: Request) -> Reply | None:
        if request.task != "trial" or asked_in(request).batch != batch or asked_in(request).kept != list(kept):
            return None
        assert request.case is not None
        trial = Trial(case_id=request.case.case_id, kept=list(kept), output_rel_l2=error, batch=batch)
        return reply_with(trial)

    return instead


def test_what_is_found_is_tried_on_three_batches_that_the_search_did_not_see(tmp_path: Path) -> None:
    run = studied(STUDY, tmp_path, network(on_batch(2, "layer.2", "layer.5", error=9e-3)), WANTED, phases=["inference"])
    assert only(run).kept == ["layer.2", "layer.5"]
    assert [(trial.batch, trial.kept) for batch in (1, 2, 3) for trial in trials_of(run, batch)] == [
        (batch, ["layer.2", "layer.5"]) for batch in (1, 2, 3)
    ]
    assert only(run).unconfirmed == ""


def test_a_set_that_misses_the_budget_on_another_batch_gives_way_to_the_next(tmp_path: Path) -> None:
    run = studied(
        STUDY, tmp_path, network(on_batch(3, "layer.2", "layer.5", error=1.1e-2)), WANTED, phases=["inference"]
    )
    search = only(run)
    assert search.kept is not None
    assert search.minimal
    assert units_of(EIGHT, search.kept) > PLANTED
    assert len(units_of(EIGHT, search.kept)) == 3
    assert [trial.kept for trial in trials_of(run, 3)] == [["layer.2", "layer.5"], search.kept]
    (record,) = searches(run).values()
    assert [row.trial.kept for row in kept_sets(record) if row.refuted] == [["layer.2", "layer.5"]]


@pytest.mark.parametrize(
    ("precision", "phase", "bounded"),
    [("bf16_pure", "training", True), ("bf16_pure", "inference", False), ("bf16_autocast", "training", False)],
)
def test_updates_bound_what_trains_in_weights_stored_in_half(
    precision: str, phase: str, bounded: bool, tmp_path: Path
) -> None:
    def instead(request: Request) -> Reply | None:
        if request.task != "trial":
            return None
        reply = answer(request)
        kept = units_of(EIGHT, asked_in(request).kept)
        arrives = 0.5 + len(kept & {2, 5, 7}) / 6 if asked_in(request).updates else None
        return reply_with(structs.replace(got("trial", reply), update_kept=arrives))

    channel = network(instead)
    wanted = structs.replace(WANTED, min_update_kept=0.98)
    run = studied(STUDY, tmp_path, channel, wanted, precisions=[precision], phases=[phase])
    search = only(run)
    assert run.of(SearchSpace)[search.case_id].limits.min_update_kept == (0.98 if bounded else None)
    assert {asked_in(request).updates for request in channel.asked if request.task == "trial"} == {bounded}
    assert search.kept == (["layer.2", "layer.5", "layer.7"] if bounded else ["layer.2", "layer.5"])


def test_the_space_and_each_trial_are_stored_before_the_next_is_asked_for(tmp_path: Path) -> None:
    stored: list[tuple[str, int]] = []

    def look(request: Request) -> Reply | None:
        run = read_run(next((tmp_path / "runs").glob("*.jsonl")))
        stored.append((request.task, len(run.of(SearchSpace)) + sum(map(len, run.several_of(Trial).values()))))
        return None

    studied(STUDY, tmp_path, network(look), WANTED)
    assert [count for _, count in stored] == list(range(len(stored)))


@pytest.mark.parametrize("most", [1, 5, 12])
def test_no_more_sets_are_tried_than_asked_for(most: int, tmp_path: Path) -> None:
    run = studied(STUDY, tmp_path, network(), structs.replace(WANTED, max_trials=most))
    assert len(trials_of(run)) == min(most, 10)
    assert only(run).minimal == (most == 12)


@pytest.mark.parametrize(("kind", "count"), [("trial", 2), ("trial", 5), ("timing", 1)])
def test_an_interrupted_search_goes_on_where_it_was_and_ends_as_if_it_had_not_been(
    kind: str, count: int, tmp_path: Path
) -> None:
    whole = studied(STUDY, tmp_path / "whole", network(), WANTED)
    broken = studied(STUDY, tmp_path / "broken", network(interrupt_at(kind, count)), WANTED)
    left = [case.case_id for case in lacking(STUDY, broken)]
    assert (broken.ended, broken.of(KeepSearch), left) == ("interrupted", {}, list(broken.cases))
    again = network()
    ended = resumed(STUDY, broken, again)
    assert only(ended) == only(whole)
    assert ended.several_of(Trial) == whole.several_of(Trial)
    before, after = (sum(map(len, run.several_of(Trial).values())) for run in (broken, whole))
    assert len(again.asked) == 2 + after - before, "the space, to see that it is the same, what is left, and the timing"
    assert [footer.ended for footer in ended.footers] == ["interrupted", "complete"]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"weights_digest": "changed"}, "weights"),
        ({"inputs_digest": "changed"}, "inputs"),
        ({"units": EIGHT.units[1:]}, "modules"),
        ({"containers": [""]}, "modules"),
    ],
)
def test_a_search_of_another_network_than_it_began_with_is_not_gone_on_with(
    changes: dict[str, object], what: str, tmp_path: Path
) -> None:
    broken = studied(STUDY, tmp_path, network(interrupt_at("trial", 3)), WANTED)
    before = broken.several_of(Trial)

    def changed(request: Request) -> Reply | None:
        assert request.case is not None
        assert request.task == "space"
        return reply_with(structs.replace(EIGHT, case_id=request.case.case_id, **changes))  # type: ignore[arg-type]

    with pytest.raises(UsageError, match=f"cannot be resumed: the {what} (of mlp )?are others than it began with"):
        resumed(STUDY, broken, network(changed))
    assert read_run(broken.path).several_of(Trial) == before
