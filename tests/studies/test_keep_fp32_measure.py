import dataclasses
import gc
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F

import ampbench
from ampbench.errors import WorkloadError
from ampbench.records.case import Case
from ampbench.studies import keep_fp32_measure as measure
from ampbench.studies.keep_fp32 import Limits, SearchSpace, TimedSet, Timing, Trial
from ampbench.studies.keep_fp32_measure import do_timing, try_kept
from ampbench.worker import timing
from ampbench.worker.divergence import References, measure_divergence
from ampbench.worker.machine import Cpu
from ampbench.worker.timing import FEWEST_PAIRS, PAIRS
from ampbench.workload import Workload
from tests.planted_faults import small_conv_net, small_encoder
from tests.studies.working import at_work

MakeCase = Callable[..., Case]
FAULTLESS = 1e-2
"""Below this is what half precision errs without a fault."""


class Quick(Cpu):
    """Collecting garbage takes longer than all that is timed here."""

    def release(self) -> None:
        pass


def search_space(workload: Workload, planned: Case, device: Cpu) -> SearchSpace:
    return measure.search_space(at_work(workload, planned, device), Limits(max_error=FAULTLESS))


def told(space: SearchSpace) -> list[list[str]]:
    return [unit.modules for unit in space.units]


def attempt(workload: Workload, planned: Case, *kept: str, references: References | None = None) -> Trial:
    return try_kept(workload, planned, Quick(), kept, references or References())


class Blocks(torch.nn.Module):
    """A container that adds something of its own to what its modules give, and one that is not called itself."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Linear(4, 8)
        self.body = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
        self.heads = torch.nn.ModuleList([torch.nn.Linear(8, 2), torch.nn.Linear(8, 3)])
        self.unused = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body(self.stem(x))
        return torch.cat([head(x) for head in reversed(self.heads)], 1)


class Tied(torch.nn.Module):
    """A language model in small, whose head has the embedding's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 8)
        self.middle = torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, 10, bias=False)
        self.spare = torch.nn.Linear(8, 10, bias=False)
        self.head.weight = self.spare.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.middle(self.embedding(tokens)))


@pytest.fixture
def blocks() -> Workload:
    torch.manual_seed(0)
    return Workload(module=Blocks(), inputs=torch.randn(3, 4), loss=lambda output: output.float().square().mean())


@pytest.fixture
def tied() -> Workload:
    torch.manual_seed(0)
    return Workload(
        module=Tied(), inputs=torch.arange(6).reshape(2, 3), loss=lambda output: output.float().square().mean()
    )


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is now, there are builds enough for an interval."""
    monkeypatch.setattr(timing, "PATIENCE", 1e6)
    monkeypatch.setattr(measure, "SECONDS", 0.02)


@pytest.mark.parametrize("phase", ["inference", "training"])
def test_units_are_the_modules_in_which_no_other_runs_in_the_order_of_running(
    blocks: Workload, case: MakeCase, phase: str
) -> None:
    space = search_space(blocks, case("fp16_autocast", phase), Cpu())
    assert told(space) == [["stem"], ["body.0"], ["body.1"], ["heads.1"], ["heads.0"]]
    assert space.containers == ["", "body"]
    assert space.notes == []
    assert all(unit.own_rel_l2 for unit in space.units)
    assert [unit.kind for unit in space.units[:3]] == ["Linear", "Linear", "BatchNorm1d"]


def test_modules_that_share_a_parameter_are_one_unit_also_with_those_that_do_not_run(
    tied: Workload, case: MakeCase
) -> None:
    space = search_space(tied, case("fp16_pure"), Cpu())
    assert told(space) == [["embedding", "head", "spare"], ["middle"]]


def test_what_the_network_keeps_itself_is_left_out(blocks: Workload, case: MakeCase) -> None:
    ampbench.keep_fp32(blocks.module, "body", "heads.1")
    space = search_space(blocks, case("fp16_autocast"), Cpu())
    assert told(space) == [["stem"], ["heads.0"]]
    assert space.containers == [""]
    assert space.notes == ["left out are modules that the network keeps in fp32 itself: body.0, body.1, heads.1"]


@pytest.mark.parametrize("where", ["outputs", "the loss"])
def test_a_network_that_is_not_finite_in_fp32_is_refused(blocks: Workload, case: MakeCase, where: str) -> None:
    if where == "outputs":
        with torch.no_grad():
            blocks.module.stem.weight.fill_(3e38)
        refused = blocks
    else:
        refused = dataclasses.replace(blocks, loss=lambda output: (output.float() * 1e30).square().mean())
    with pytest.raises(WorkloadError, match="not finite in fp32 already"):
        search_space(refused, case("fp16_autocast", "training"), Cpu())


@pytest.mark.parametrize("phase", ["inference", "training"])
@pytest.mark.parametrize("precision", ["fp16_autocast", "bf16_pure"])
def test_a_trial_that_keeps_nothing_is_the_divergence_of_the_case(
    classifier: Workload, case: MakeCase, precision: str, phase: str
) -> None:
    planned, references = case(precision, phase), References()
    trial = attempt(classifier, planned, references=references)
    found = measure_divergence(classifier, planned, Cpu(), references)
    assert trial == Trial(
        case_id=planned.case_id, output_rel_l2=found.output.rel_l2, grad_rel_l2=found.gradient.rel_l2, nonfinite=0
    )
    assert (trial.grad_rel_l2 is not None) == (phase == "training")


@pytest.mark.parametrize(
    ("precision", "phase"), [("fp16_autocast", "inference"), ("fp16_autocast", "training"), ("fp16_pure", "training")]
)
@pytest.mark.parametrize("fault", ["softmax of large logits", "sum of sixteens", "tiny variance"])
@pytest.mark.parametrize("make", [small_conv_net, small_encoder])
def test_keeping_a_faulty_module_mends_the_network(
    make: Any, fault: str, precision: str, phase: str, case: MakeCase
) -> None:
    module, inputs, path = make(fault)
    # Under autocast in training, the norm before the encoder's middle gives it fp32: no fault then.
    workload = Workload(module=module, inputs=inputs, loss=lambda output: output.float()[..., 0].sum())
    planned, references = case(precision, phase), References()
    none, kept = (attempt(workload, planned, *names, references=references) for names in ([], [path]))
    given_fp32 = make is small_encoder and precision == "fp16_autocast" and phase == "training"
    assert (none.nonfinite > 0) != given_fp32
    assert (none.output_rel_l2 is None) != given_fp32
    assert kept.nonfinite == 0
    assert kept.error == ""
    assert kept.output_rel_l2 is not None
    assert kept.output_rel_l2 < FAULTLESS


@pytest.mark.parametrize("kept", [["embedding"], ["head"], ["embedding", "head"]])
def test_tied_modules_in_half_must_be_kept_together(tied: Workload, case: MakeCase, kept: list[str]) -> None:
    trial = attempt(tied, case("fp16_pure"), *kept)
    shared = "embedding.weight and head.weight and spare.weight are one parameter: keep the modules of all, or none"
    assert trial.error == f"UsageError: {kept[0]}: {shared}"
    assert attempt(tied, case("fp16_autocast"), *kept).error == ""


def test_what_a_network_raises_over_kept_modules_is_the_trials_error(case: MakeCase) -> None:
    class Functional(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.linear(self.layer(x), self.layer.weight)

    workload = Workload(module=Functional(), inputs=torch.randn(2, 4))
    trial = attempt(workload, case("fp16_pure"), "layer")
    assert trial.error.startswith("RuntimeError: ")
    assert (trial.output_rel_l2, trial.kept) == (None, ["layer"])


FULL = [torch.OutOfMemoryError("full"), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")]


@pytest.mark.parametrize("error", FULL)
def test_a_trial_for_which_there_is_no_room_says_so_and_the_next_runs(
    blocks: Workload, case: MakeCase, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    real = measure.run_step

    def full(*args: Any, **named: Any) -> Any:
        if named["kept"] == (("",)):
            raise error
        return real(*args, **named)

    monkeypatch.setattr(measure, "run_step", full)
    planned, references = case("fp16_autocast"), References()
    assert attempt(blocks, planned, "", references=references) == Trial(
        case_id=planned.case_id, kept=[""], error="out of memory"
    )
    assert attempt(blocks, planned, "stem", references=references).error == ""


class Watched(torch.nn.Linear):
    """Knows which of its copies are alive."""

    alive: ClassVar[weakref.WeakSet[torch.nn.Module]] = weakref.WeakSet()

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.nn.Module:
        new = Watched(self.in_features, self.out_features)
        new.load_state_dict(self.state_dict())
        memo[id(self)] = new
        Watched.alive.add(new)
        return new


@pytest.mark.parametrize("phase", ["inference", "training"])
@pytest.mark.parametrize("kept", [[], ["0"], [""]])
def test_a_trial_leaves_no_step_in_memory(case: MakeCase, phase: str, kept: list[str]) -> None:
    module = torch.nn.Sequential(Watched(4, 4), torch.nn.ReLU())
    workload = Workload(module=module, inputs=torch.randn(2, 4), loss=lambda output: output.float().sum())
    gc.collect()
    gc.disable()
    try:
        assert attempt(workload, case("fp16_autocast", phase), *kept).error == ""
        assert not Watched.alive
    finally:
        gc.enable()


@pytest.mark.parametrize(("precision", "phase"), [("fp16_autocast", "training"), ("bf16_pure", "inference")])
@pytest.mark.usefixtures("patient")
def test_sets_are_weighed_side_by_side(classifier: Workload, case: MakeCase, precision: str, phase: str) -> None:
    before = {name: value.clone() for name, value in classifier.module.state_dict().items()}
    asked = Timing(sets=[TimedSet(kept=kept) for kept in ([], ["1"], ["0", "3"], [""])])
    found = do_timing(at_work(classifier, case(precision, phase), Quick()), asked)
    assert [one.kept for one in found.sets] == [one.kept for one in asked.sets]
    builds = [[len(build) for build in one.samples] for one in found.sets]
    assert builds == [builds[0]] * 4
    assert FEWEST_PAIRS <= len(builds[0]) <= PAIRS
    assert all(second > 0 for one in found.sets for build in one.samples for second in build)
    assert all(one.peak_bytes for one in found.sets)
    assert found.fitness.load is not None
    assert all(torch.equal(value, before[name]) for name, value in classifier.module.state_dict().items())


def test_what_arrives_of_an_update_is_that_of_the_divergence_pass_and_grows_with_what_is_kept(case: MakeCase) -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    workload = Workload(
        module=module,
        inputs=torch.randn(8, 16),
        targets=torch.randint(4, (8,)),
        loss=F.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
    )
    planned = case("bf16_pure", "training")
    references = References()
    none, some, whole = (
        try_kept(workload, planned, Quick(), kept, references, updates=True) for kept in ([], ["0"], [""])
    )
    update = measure_divergence(workload, planned, Quick(), References()).update
    assert update is not None
    assert none.update_kept == pytest.approx(update.kept)
    assert none.update_kept is not None
    assert some.update_kept is not None
    assert none.update_kept < 0.9
    assert none.update_kept < some.update_kept < 1
    assert whole.update_kept == pytest.approx(1, abs=1e-3)
    assert (none.update_nonfinite, none.update_undefined) == (0, "")
    assert try_kept(workload, planned, Quick(), [], references).update_kept is None
