import contextlib
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ampbench.core.precisions import PRECISIONS, Precision
from ampbench.drive import planning
from ampbench.drive.planning import NO_GRAPHS, NO_LOSS, Describe, PlannedCase, default_device, find_workloads, make_plan
from ampbench.errors import UnknownNameError, UsageError, WorkloadError
from ampbench.records.case import DeviceDescription, Environment, OwnPrecision, ParameterValue, WorkloadSource, matches
from ampbench.records.run import Selection
from ampbench.records.wire import Description, NamedNetwork
from ampbench.workloads.index import FAMILIES, WORKLOADS
from tests.scripted_channel import machine

CPU = DeviceDescription(type="cpu", available=True, arithmetic={"fp32": "native", "bf16": "native", "fp16": "emulated"})
CUDA = DeviceDescription(type="cuda", available=True, tf32=True, arithmetic={"fp32": "native", "fp16": "native"})
NO_XPU = DeviceDescription(type="xpu", available=False, reason="this torch was built without xpu")


def environment(*devices: DeviceDescription) -> Environment:
    return machine(*(devices or (CPU, NO_XPU)))


def describe(source: WorkloadSource, parameters: Mapping[str, ParameterValue]) -> Description:
    defaults: dict[str, ParameterValue] = {"width": 8, "batch_size": 4}
    return Description(
        parameters={**defaults, **parameters}, has_loss=False, items_per_step=4.0, version=0, channels_last=False
    )


def plan(env: Environment | None = None, **selected: object) -> list[PlannedCase]:
    return make_plan(Selection(**selected), env or environment(), describe)  # type: ignore[arg-type]


def test_the_default_suite_covers_every_family_the_devices_precisions_and_both_phases() -> None:
    cases = [planned.case for planned in plan()]
    suite = {*FAMILIES} - {"data"}
    assert {case.family for case in cases} == suite, "data is for studies"
    assert {case.precision for case in cases} == {row.name for row in PRECISIONS.values() if "cpu" in row.default_on}
    for family in suite:
        assert {case.phase for case in cases if case.family == family} == {"inference", "training"}
    assert {case.device for case in cases} == {"cpu"}


def test_master_weights_are_a_matter_of_training() -> None:
    found = plan(environment(CUDA), workloads=["mlp"], devices=["cuda"])
    phases = {planned.case.phase for planned in found if planned.case.precision == "bf16_master"}
    assert phases == {"training"}
    named = plan(workloads=["mlp"], precisions=["bf16_master"])
    assert {planned.case.phase: planned.skip for planned in named} == {
        "inference": "without an optimizer bf16_master is bf16_pure",
        "training": "",
    }
    assert {planned.case.input_dtype for planned in named} == {"bf16"}


def test_what_the_cpu_cannot_do_is_skipped_with_the_reason() -> None:
    skipped = {planned.case.precision: planned.skip for planned in plan(workloads=["mlp"])}
    assert skipped["tf32"] == "cpu has no tf32"
    assert {name for name, reason in skipped.items() if reason} == {"tf32", "fp16_autocast", "fp16_pure"}


def test_precisions_that_the_cpu_emulates_are_run_where_they_are_named() -> None:
    def run(precisions: list[str], env: Environment | None = None, **changes: bool) -> set[str]:
        selection = Selection(workloads=["mlp"], phases=["inference"], precisions=precisions)
        found = make_plan(selection, env or environment(), describe, **changes)
        return {planned.case.precision for planned in found if not planned.skip}

    shown = {"fp16_autocast", "fp16_pure"}
    assert run([]) & shown == set()
    assert run(["fp16_pure"]) == {"fp16_pure"}
    native = environment(replace(CPU, arithmetic={"fp16": "native"}))
    for found in (run(["all"]), run([], emulated=True), run([], native)):
        assert found >= shown


def test_an_accelerator_is_preferred_and_gets_the_large_preset() -> None:
    both = environment(CPU, CUDA)
    assert default_device(both) == "cuda"
    (batch,) = {planned.case.batch_size for planned in plan(both, workloads=["mlp"])}
    assert batch == WORKLOADS["mlp"].preset("large")["batch_size"]
    assert {planned.skip for planned in plan(both, workloads=["mlp"]) if planned.case.precision == "tf32"} == {""}
    small = environment(CPU, replace(CUDA, memory_bytes=8 << 30))
    (batch,) = {planned.case.batch_size for planned in plan(small, workloads=["mlp"])}
    assert batch == WORKLOADS["mlp"].preset("small")["batch_size"]


def test_without_a_device_named_the_cpu_does_not_stand_in_for_an_accelerator_that_torch_cannot_use() -> None:
    unusable = replace(
        CUDA, available=False, unusable=True, reason="RuntimeError: The NVIDIA driver on your system is too old"
    )
    with pytest.raises(UsageError, match=r"cannot use the cuda device .* too old; to measure the CPU: --device cpu"):
        default_device(environment(CPU, unusable))


def test_for_fake_tensors_an_absent_device_is_no_reason_to_skip_and_all_others_are(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text("")
    selection = Selection(workloads=["mlp", f"{file}:build"], devices=["xpu", "cpu"], precisions=["tf32", "fp32"])
    found = make_plan(selection, environment(), describe, absent_devices=True)
    reasons = {(p.case.device, p.case.family, p.case.phase, p.case.precision): p.skip for p in found}
    assert reasons["xpu", "linear", "training", "fp32"] == reasons["xpu", "linear", "inference", "tf32"] == ""
    assert reasons["xpu", "user", "training", "fp32"] == NO_LOSS
    assert reasons["cpu", "linear", "inference", "tf32"] == "cpu has no tf32"


def test_case_ids_are_unique_and_stable() -> None:
    ids = [planned.case.case_id for planned in plan(workloads=["all", "mlp", "linear"])]
    assert len(ids) == len(set(ids))
    (first, *_) = plan(workloads=["cross_entropy_head"], preset="tiny", precisions=["bf16_pure"], phases=["training"])
    small = WORKLOADS["cross_entropy_head"].preset("tiny")
    assert first.case.case_id == (
        f"cross_entropy_head[vocabulary={small['vocabulary']},width={small['width']}]/b{small['batch_size']}"
        "/bf16_pure/cpu/training/eager/in-bf16"
    )


@pytest.mark.parametrize(
    ("recipe", "settings", "said"),
    [
        ("lr=0.1", (), "net:make has no optimizer to change: name one, as in --optimizer adamw:lr=3e-4"),
        ("momentum=0.9", ("lr", "betas"), "unknown setting of the optimizer of net:make 'momentum': known: lr, betas"),
        ("beta2=0.9,clip=1", ("lr", "betas"), ""),
        ("beta2=0.9", ("lr", "alpha"), ""),
        ("optimizer=sgd,momentum=0.9", (), ""),
    ],
)
def test_settings_alone_are_those_of_the_workloads_own_optimizer(
    recipe: str, settings: tuple[str, ...], said: str
) -> None:
    def described(source: WorkloadSource, parameters: Mapping[str, ParameterValue]) -> Description:
        return replace(describe(source, parameters), has_loss=True, optimizer_settings=settings)

    selection = Selection(workloads=["net:make"], precisions=["fp32"], recipes=[recipe])
    with pytest.raises(UsageError, match=said) if said else nullcontext():
        assert make_plan(selection, environment(), described)


def test_each_recipe_is_a_case_of_training_and_inference_has_none() -> None:
    recipes = ["adamw-lm,lr=3e-4", "adamw-lm", "lr=1e-5"]
    ids = [p.case.case_id for p in plan(workloads=["mlp"], precisions=["fp32", "bf16_pure"], recipes=recipes)]
    ends = ["recipe-adamw-lm", "recipe-adamw-lm", "recipe-lr=1e-05", "recipe-lr=1e-05"]
    assert [name.rpartition("/")[2] for name in ids if "/training/" in name] == ends
    assert [name.rpartition("/")[2] for name in ids if "/inference/" in name] == ["in-fp32", "in-bf16"]


def test_kernels_of_attention_are_cases_of_their_own_and_torchs_choice_changes_no_id() -> None:
    selected = {"workloads": ["transformer_encoder"], "precisions": ["fp32"], "phases": ["inference"]}
    (free,) = plan(**selected)
    auto, math = plan(**selected, sweeps={"sdpa": ["auto", "math"]})
    assert auto.case == free.case
    assert math.case == replace(free.case, sdpa="math")
    assert math.case.case_id != free.case.case_id
    with pytest.raises(UnknownNameError, match="sdpa 'falsh': did you mean flash"):
        plan(**selected, overrides={"sdpa": "falsh"})


def test_a_compile_mode_that_means_nothing_here_is_skipped_with_the_reason() -> None:
    paths = ["compiled-reduce-overhead", "compiled-max-autotune"]
    selected = {"workloads": ["mlp"], "precisions": ["fp32"], "paths": paths}
    here = {(one.case.phase, one.case.path): one.skip for one in plan(**selected)}
    there = {(one.case.phase, one.case.path): one.skip for one in plan(environment(CUDA), **selected)}
    assert here == {
        ("inference", "compiled-reduce-overhead"): NO_GRAPHS,
        ("inference", "compiled-max-autotune"): "",
        ("training", "compiled-reduce-overhead"): NO_GRAPHS,
        ("training", "compiled-max-autotune"): "",
    }
    assert there == here | {(phase, "compiled-reduce-overhead"): "" for phase in ("inference", "training")}


def test_a_value_of_a_sweep_that_cannot_be_built_is_a_case_and_without_a_sweep_an_error() -> None:
    def described(source: WorkloadSource, parameters: Mapping[str, ParameterValue]) -> Description:
        if parameters.get("width") == 5:
            raise WorkloadError("ended by signal SIGABRT")
        return replace(describe(source, parameters), parameters={"width": 4, "depth": 2, **parameters})

    selected = Selection(workloads=["pkg.module:make"], precisions=["fp32"], phases=["inference"])
    cases = make_plan(replace(selected, sweeps={"width": [4, 5]}), environment(), described)
    assert [dict(row.case.parameters) for row in cases] == [{"width": 4, "depth": 2}, {"width": 5, "depth": 2}]
    with pytest.raises(WorkloadError):
        make_plan(replace(selected, overrides={"width": 5}), environment(), described)


def test_a_sweep_measures_every_value_and_set_reaches_the_named_workload_alone() -> None:
    cases = plan(
        workloads=["mlp", "cross_entropy_head"], precisions=["fp32"], phases=["inference"],
        overrides={"mlp.width": 96}, sweeps={"batch_size": [1, 2, 4]},
    )  # fmt: skip
    found = {(p.case.workload, p.case.parameters["width"], p.case.batch_size) for p in cases}
    other = WORKLOADS["cross_entropy_head"].preset("small")["width"]
    assert found == {("mlp", 96, size) for size in (1, 2, 4)} | {
        ("cross_entropy_head", other, size) for size in (1, 2, 4)
    }


def test_a_users_workload_takes_part(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text("")
    cases = plan(workloads=[f"{file}:build"], overrides={"net.py:build.width": 16}, precisions=["fp32"])
    assert [p.case.case_id for p in cases] == [
        "net.py:build[width=16]/b4/fp32/cpu/inference/eager/in-fp32",
        "net.py:build[width=16]/b4/fp32/cpu/training/eager/in-fp32",
    ]
    assert [p.skip for p in cases] == ["", NO_LOSS]
    assert cases[0].source.module == str(file)


def test_two_files_of_one_name_are_not_taken_for_one_workload(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "net.py").write_text("")
    with pytest.raises(UsageError, match="two workloads are called"):
        plan(workloads=[f"{tmp_path}/a/net.py:build", f"{tmp_path}/b/net.py:build"])


def test_scaling_gradients_needs_fp64_on_the_device() -> None:
    arc = DeviceDescription(type="xpu", available=True, float64=False, arithmetic={"fp32": "native", "fp16": "native"})
    skips = {
        (p.case.precision, p.case.phase): p.skip
        for p in plan(environment(CPU, arc), workloads=["mlp"], precisions=["fp16_autocast", "fp16_pure"])
    }
    assert [key for key, skip in skips.items() if "GradScaler needs fp64" in skip] == [("fp16_autocast", "training")]
    unscaled = plan(environment(CPU, arc), workloads=["mlp"], precisions=["fp16_autocast"], overrides={"scaler": False})
    assert {p.skip for p in unscaled} == {""}


@pytest.mark.parametrize(
    ("selected", "error", "message"),
    [
        ({"workloads": ["resnet19"]}, UnknownNameError, "did you mean resnet18"),
        ({"workloads": ["hf:bert-base"]}, WorkloadError, "did you mean transformers:bert-base?"),
        ({"workloads": ["no/such/file.py:f"]}, WorkloadError, "there is no file no/such/file.py"),
        ({"precisions": ["fp17_autocast"]}, UnknownNameError, "did you mean fp16_autocast"),
        ({"paths": ["jit"]}, UnknownNameError, "known: eager, compiled, compiled-reduce-overhead"),
        ({"overrides": {"memory_format": "chanels_last"}}, UnknownNameError, "did you mean channels_last"),
        ({"recipes": ["adamw_lm"]}, UnknownNameError, "unknown recipe 'adamw_lm': did you mean adamw-lm"),
        ({"preset": "smal"}, UnknownNameError, "did you mean small"),
        ({"workloads": ["mlp"], "overrides": {"mlp.widht": 3}}, UnknownNameError, "did you mean width"),
        ({"workloads": ["mlp"], "overrides": {"mpl.width": 3}}, UnknownNameError, "did you mean mlp"),
        ({"workloads": ["mlp"], "overrides": {"batch_size": 0}}, UsageError, "batch_size"),
        ({"workloads": ["mlp"], "overrides": {"batch_size": "many"}}, UsageError, "batch_size"),
        ({"workloads": ["net:build"], "overrides": {"widht": 3}}, UsageError, "parameter 'widht': did you mean width"),
        ({"workloads": ["net:build"], "overrides": {"batch_size": 0}}, UsageError, "batch_size=0: must be from 1"),
    ],
)
def test_what_cannot_be_meant_is_one_line_with_the_nearest_names(
    selected: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        plan(**selected)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=20))
def test_any_keyword_matches_or_is_refused_and_nothing_else(expression: str) -> None:
    with contextlib.suppress(UsageError):
        assert matches(expression, "mlp/fp32/cpu") in (True, False)


def test_a_file_that_is_misspelt_is_refused_with_the_nearest_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "gpt.py").touch()
    with pytest.raises(WorkloadError, match=r"there is no file .*/gtp.py: did you mean .*/gpt.py\?$"):
        find_workloads(f"{tmp_path}/gtp.py:make")
    with pytest.raises(WorkloadError, match=r"there is no file .*/gtp.py$"):
        find_workloads(f"{tmp_path}/elsewhere/gtp.py:make")


@pytest.fixture
def own_precisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's file that holds a precision, which is forgotten once the test has ended."""
    monkeypatch.setattr("ampbench.core.precisions.PRECISIONS", known := dict(PRECISIONS))
    monkeypatch.setattr("ampbench.drive.planning.PRECISIONS", known)


def offering(*found: OwnPrecision) -> Describe:
    def described(source: WorkloadSource, parameters: Mapping[str, ParameterValue]) -> Description:
        return replace(describe(source, parameters), precisions=found)

    return described


@pytest.mark.usefixtures("own_precisions")
def test_a_precision_of_a_users_file_is_planned_by_its_name_and_where_none_is_named() -> None:
    mine = OwnPrecision(name="bf16_mine", storage="bfloat16", rounding="bfloat16", default_on=("cpu",))
    selection = Selection(workloads=["net:make"], phases=["inference"])
    for named in (["bf16_mine"], []):
        found = make_plan(replace(selection, precisions=named), environment(), offering(mine))
        last = found[-1].case
        assert (last.precision, last.input_dtype) == ("bf16_mine", "bf16")
        assert len(found) == 1 or not named
    with pytest.raises(UnknownNameError, match="unknown precision 'bf16_min': did you mean bf16_mine"):
        make_plan(replace(selection, precisions=["bf16_min"]), environment(), offering(mine))


@pytest.mark.usefixtures("own_precisions")
def test_a_precision_that_this_process_has_met_keeps_its_code() -> None:
    row = Precision(name="bf16_mine", storage="bfloat16", default_on=(), prepare=print)
    planning.precisions.meet(row)
    selection = Selection(workloads=["net:make"], phases=["inference"], precisions=["bf16_mine"])
    make_plan(selection, environment(), offering(OwnPrecision.of(row)))
    assert planning.precisions.PRECISIONS["bf16_mine"].prepare is print


def describe_networks(
    source: WorkloadSource, parameters: Mapping[str, ParameterValue], preset: str = ""
) -> Description:
    """A torchvision that has two networks, of which the second cannot be built here."""
    names = ["net_a", "net_b"] if source.function.endswith("*") else [source.function]
    found = Description(
        parameters={"image": 8 if preset == "tiny" else 64, "batch_size": 1} | {**parameters}, has_loss=True,
        items_per_step=1.0, version=1, channels_last=True,
        networks=tuple(NamedNetwork(name=name, task="image classification") for name in names),
    )  # fmt: skip
    return replace(found, unavailable="it needs a tokenizer") if source.function == "net_b" else found


def test_a_librarys_pattern_is_a_case_for_each_network_and_one_that_cannot_be_built_is_skipped() -> None:
    overrides = {"torchvision:net_a.batch_size": 3, "image": 16}
    selection = Selection(
        workloads=["torchvision:net_*", "torchvision:net_a"], precisions=["fp32"], phases=["inference"],
        preset="tiny", overrides=overrides,
    )  # fmt: skip
    planned = make_plan(selection, environment(), describe_networks)
    assert [(one.case.workload, one.case.family, one.case.batch_size, one.skip) for one in planned] == [
        ("torchvision:net_a", "torchvision", 3, ""),
        ("torchvision:net_b", "torchvision", 1, "it needs a tokenizer"),
    ]
    assert [one.case.parameters for one in planned] == [{"image": 16}] * 2
    assert planned[0].case.case_id.startswith("torchvision:net_a[image=16]/b3/fp32/")
    with pytest.raises(UnknownNameError, match="unknown --set workload 'net_c'"):
        make_plan(replace(selection, overrides={"net_c.image": 16}), environment(), describe_networks)
