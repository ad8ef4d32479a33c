from dataclasses import replace

from ampbench.instruments.ceilings.records import Ceiling
from ampbench.judge import frame
from ampbench.judge.advice import Advice
from ampbench.judge.notes import Note, statements, sweep_remarks, swept_value
from ampbench.judge.rows import Group, Row
from ampbench.records.case import DeviceDescription, WorkloadSource
from ampbench.records.measured import Fitness
from ampbench.records.run import Imported, Selection
from ampbench.store import StoredRun
from tests.compared_runs import BF16, FP32, Times, environment, make_run
from tests.stored_runs import holding, make_case, make_ceiling, make_divergence, make_header, make_memory


def group(batch_size: int | None, parameters: str = "depth=4,width=512", phase: str = "inference") -> Group:
    return Group(
        workload="mlp",
        parameters=parameters,
        batch_size=batch_size,
        memory_format="contiguous",
        device="cpu",
        phase=phase,
        path="eager",
    )


def advised(*chosen: tuple[Group, str | None]) -> dict[Group, Advice]:
    return {one: Advice(group=one, precision=name, column="speedup_vs_fp32", sentence="") for one, name in chosen}


def rows(run: StoredRun) -> list[Row]:
    return frame.run_rows(run)


def test_a_sweep_is_summed_up_by_what_is_advised_at_each_value() -> None:
    advice = advised(
        (group(1), "fp32"),
        (group(16), "bf16_pure"),
        (group(1, phase="training"), None),
        (group(16, phase="training"), "fp32"),
    )
    assert sweep_remarks(advice, ["batch_size"]) == [
        "by batch_size, mlp inference eager on cpu: 1 fp32, 16 bf16_pure",
        "by batch_size, mlp training eager on cpu: 1 no advice, 16 fp32",
    ]


def answer(*found: tuple[int | None, Advice]) -> str:
    """Return what the line of a sweep over batch sizes says behind the list of what is advised."""
    (line,) = sweep_remarks({group(batch): replace(one, group=group(batch)) for batch, one in found}, ["batch_size"])
    return line.partition("; ")[2]


STAYS = Advice(group=group(1), precision="fp32", column="speedup_vs_fp32", sentence="", why="nothing is faster")
TAKES = replace(STAYS, precision="bf16_pure", gains="1.50x the speed of fp32", why="")
MAY_BE = replace(STAYS, why="no speedup is certain", caveat="more --rounds may tell")
FEW = replace(STAYS, column="output_rel_l2", why="bf16_pure looks 2.00x as fast, but", few_rounds=True)


def test_a_sweep_says_from_which_value_on_low_precision_pays_and_why() -> None:
    pays = "low precision pays from 16 on (bf16_pure: 1.50x the speed of fp32), not at 8 (nothing is faster)"
    assert answer((8, STAYS), (16, TAKES)) == pays
    assert answer((128, TAKES), (8, STAYS), (16, TAKES)) == pays  # in whatever order they were swept
    assert answer((1, MAY_BE), (8, STAYS), (16, TAKES)) == pays  # true of 8 whatever is so of 1
    assert answer((8, STAYS), (16, STAYS)) == "low precision pays at none of them: at 16 nothing is faster"
    first = "low precision pays at each of them, at 8 already (bf16_pure: 1.50x the speed of fp32)"
    assert answer((8, TAKES), (16, replace(TAKES, precision="tf32"))) == first


def test_a_sweep_says_nothing_of_where_low_precision_pays_while_that_is_not_decided() -> None:
    assert answer((8, MAY_BE), (16, TAKES)) == ""
    assert answer((8, STAYS), (16, replace(TAKES, caveat="the machine was not quiet"))) == ""
    assert answer((8, STAYS), (16, replace(TAKES, precision=None))) == ""
    assert answer((8, STAYS), (16, FEW)) == ""
    assert answer((8, TAKES), (16, STAYS)) == ""  # there is no one value from which it pays
    assert answer((16, TAKES)) == ""
    two_widths = {group(8): TAKES, group(8, "width=64"): TAKES}  # a value comes twice: which of them pays?
    assert sweep_remarks(two_widths, ["batch_size"]) == [
        "by batch_size, mlp inference eager on cpu: 8 bf16_pure, 8 bf16_pure"
    ]


def test_a_parameter_is_found_among_the_others_and_one_that_is_not_there_is_left_out() -> None:
    assert swept_value(group(8), "width") == "512"
    assert swept_value(group(None), "batch_size") is None
    assert sweep_remarks(advised((group(8), "fp32")), ["heads"]) == []


def test_a_run_without_a_sweep_has_no_such_line() -> None:
    assert sweep_remarks(advised((group(8), "fp32")), []) == []


def test_what_no_reader_may_miss_is_a_warning_and_the_rest_is_none() -> None:
    arithmetic = {"bfloat16": "native", "float16": "emulated"}
    emulating = DeviceDescription(type="cpu", available=True, name="AMD EPYC", arithmetic=arithmetic)
    header = environment(make_header(imported=Imported(program="asv", file="a.json")), devices=[emulating])
    times = Times((FP32, [1e-3] * 4), (make_case("fp16_pure"), [1e-3] * 4))
    run = make_run(times, control=[1e-3] * 4, header=header)
    loud = replace(run, rounds=[replace(one, samples=[[1e-3, 2e-3, 2e-3]]) for one in run.rounds])
    rows = frame.run_rows(loud)
    said = {note.text.split()[0]: note.warning for note in statements(loud, rows)}
    assert said == {"These": True, "imported": True, "control:": False, "this": True}
    native = replace(emulating, arithmetic={"bfloat16": "native", "float16": "native"})
    (note, _) = statements(replace(run, header=environment(make_header(), devices=[native])), rows)
    assert not note.warning


def test_errors_of_chance_are_a_warning() -> None:
    run = make_run(Times((FP32, [1e-3] * 4), (BF16, [1e-3] * 4)))
    found = {FP32.case_id: make_divergence(FP32, chance_rel_l2=1.22), BF16.case_id: make_divergence(BF16)}
    (note,) = statements(replace(run, divergence=found), frame.run_rows(run))
    assert note.warning
    assert note.text == (
        "linear_chain: its error means nothing: two fp64 steps already lie 1.2e+00 apart, as the network draws random "
        "numbers, other ones in other dtypes, or keeps state of its own"
    )


def test_a_network_that_comes_compiled_is_called_so() -> None:
    run = make_run(Times((FP32, [1e-3] * 4)))
    run = replace(run, rounds=[replace(one, comes_compiled=True) for one in run.rounds])
    (note,) = statements(run, frame.run_rows(run))
    assert note.text == "linear_chain comes compiled by torch.compile: its path eager is that compiled code"


def test_a_preset_that_sets_nothing_is_said_so() -> None:
    own = replace(FP32, family="user", workload="net.py:make")
    header = make_header(selection=Selection(preset="tiny"))
    for case, said in ((own, 1), (FP32, 0)):
        run = make_run(Times((case, [1e-3] * 4)), header=environment(header))
        notes = statements(run, frame.run_rows(run))
        assert [note.text for note in notes] == [
            "--preset tiny sets the sizes of built-in workloads, and none of net.py:make: theirs are --set"
        ] * said


def test_what_is_changed_in_place_is_a_warning_that_says_what_was_done() -> None:
    run = make_run(Times((FP32, [1e-3] * 4), (BF16, [1e-3] * 4)))
    rows = frame.run_rows(run)
    assert statements(run, rows) == []
    rounds = [replace(one, changed_in_place=["input[0]", "weight body.weight"]) for one in run.rounds]
    (note,) = statements(replace(run, rounds=rounds), rows)
    assert note.warning
    assert note.text == (
        "linear_chain changes in place what it is given (input[0], weight body.weight): that is put back before every "
        "step, errors are those of a first step, and each timed sample is one step"
    )


def test_more_than_the_ceiling_allows_is_a_warning_that_names_the_cases_and_what_to_do() -> None:
    times = Times((FP32, [1e-3] * 4), (BF16, [1e-3] * 4))
    run = make_run(times)

    def said(fp32: float, bf16: float) -> list[Note]:
        memory = {
            FP32.case_id: make_memory(FP32, 1, flops={"fp32": round(fp32 * 1e6)}),
            BF16.case_id: make_memory(BF16, 1, flops={"bf16": round(bf16 * 1e6)}),
        }
        found = holding(replace(run, memory=memory), make_ceiling("fp32", 1e9), make_ceiling("bf16", 1e9))
        return statements(found, frame.run_rows(found))

    assert said(1.0, 1.05) == []
    (note,) = said(0.5, 1.17)
    assert note.warning
    assert note.text.startswith("linear_chain bf16_autocast attains 117% of the measured ceiling: ")
    assert note.text.endswith("measure the ceilings again: ampbench study ceilings")
    (note,) = said(2.0, 1.17)
    assert note.text.startswith("linear_chain fp32, linear_chain bf16_autocast attain up to 200% of the measured")


def test_the_run_that_ceilings_are_of_is_named_and_one_that_others_lowered_is_a_warning() -> None:
    run = make_run(Times((FP32, [1e-3] * 4)))
    memory = {FP32.case_id: make_memory(FP32, 1, flops={"fp32": 100_000})}

    def said(*ceilings: Ceiling) -> list[Note]:
        found = holding(replace(run, memory=memory), *ceilings)
        return statements(found, frame.run_rows(found))

    busy = Fitness(other_share=0.7)
    quiet, low = make_ceiling("fp32", 1e9, run="studied"), make_ceiling("fp32", 5e8, "conv", run="before", fitness=busy)
    assert said(quiet) == said(quiet, low) == [Note("ceilings: of run studied")]
    (note,) = said(replace(quiet, dtype="bf16"))
    assert note.text.startswith("no ceiling of products in fp32 is known here")
    (note,) = said(replace(quiet, fitness=busy), low)
    assert note.warning
    assert note.text == (
        "ceilings: of run studied; other work took up to 70.0% of the CPU's time while matmul fp32 was measured: "
        "shares of them may be too high; measure the ceilings again: ampbench study ceilings"
    )
    (note,) = said(replace(quiet, run="", fitness=Fitness(steal_share=0.3)))
    assert note.text.startswith("ceilings: of this run; other work took up to 30.0%")


def test_what_is_not_finite_and_what_is_not_against_fp64_is_the_first_thing_said() -> None:
    run = make_run(
        Times((FP32, [1e-3] * 4), (BF16, [1e-3] * 4)),
        output_rel_l2=None,
        output_elements=32,
        output_reference_nonfinite=16,
        output_reference_nan=16,
    )
    first = statements(run, frame.run_rows(run))[0]
    assert first.warning
    said = "16 of 32 output elements are NaN in fp64 already: the network, not a precision, makes them"
    assert first.text.endswith(f": {said}")
    assert first.text.count(",") == 2  # said once, of both precisions


def test_fp32_that_is_not_fp32_is_a_warning_with_what_made_it_so() -> None:
    run = make_run(Times((FP32, [1e-3] * 3), (BF16, [1e-3] * 3)))
    told = [replace(one, fp32_products={"matmul": "bf16", "conv": "bf16"}) for one in run.rounds]
    shell = replace(run.header.environment, variables={"ONEDNN_DEFAULT_FPMATH_MODE": "BF16"})
    run = replace(run, rounds=told, header=replace(run.header, environment=shell))
    said = (
        "fp32 is not fp32 here: factors of matrix products and convolutions are rounded to bf16 "
        "(ONEDNN_DEFAULT_FPMATH_MODE=BF16)"
    )
    (note,) = [one for one in statements(run, rows(run)) if "not fp32" in one.text]
    assert note.text.endswith(said)
    assert note.warning


def test_a_precision_whose_products_are_those_of_fp32_here_says_so_of_its_divergence_alone() -> None:
    case = replace(FP32, precision="fp32_bf16_products")
    run = make_run(Times((FP32, [1e-3]), (case, [1e-3])))
    found = {one.case_id: make_divergence(one, fp32_products={}) for one in (FP32, case)}
    run = replace(run, divergence=found)
    (note,) = [one for one in statements(run, rows(run)) if "no fp32 product" in one.text]
    assert note.text.endswith("fp32_bf16_products: no fp32 product was rounded to bf16: this is fp32")
    assert not note.warning
    older = replace(run, divergence={key: replace(one, fp32_products=None) for key, one in found.items()})
    assert not [one for one in statements(older, rows(older)) if "no fp32 product" in one.text]


def test_kernels_of_attention_are_told_where_precisions_differ_in_them() -> None:
    def said(**kernels: dict[str, int] | None) -> list[str]:
        run = make_run(Times((FP32, [1e-3]), (BF16, [1e-3])))
        named = ((FP32, "fp32"), (BF16, "bf16"))
        run = replace(run, memory={one.case_id: make_memory(one, 1, attention=kernels[name]) for one, name in named})
        return [note.text for note in statements(run, rows(run)) if "attention" in note.text]

    (told,) = said(fp32={"efficient": 2}, bf16={"flash": 1, "math": 1})
    assert told == (
        "linear_chain: attention runs by efficient in fp32; by flash and math in bf16_autocast: part of the "
        "difference, in time and error, is the kernel's; --sdpa math holds all to one"
    )
    (told,) = said(fp32={"native": 2}, bf16={"math": 2})
    assert "--sdpa" not in told, "it does not reach the fast path of encoder layers"
    assert said(fp32={"flash": 2}, bf16={"flash": 4}) == []
    assert said(fp32={"flash": 2}, bf16=None) == []
    assert len(said(fp32={"flash": 2}, bf16={})) == 1


def test_what_torch_ships_tells_what_it_rounds() -> None:
    case = replace(FP32, precision="default")
    run = make_run(Times((case, [1e-3])))
    run = replace(run, rounds=[replace(one, fp32_products={"conv": "tf32"}) for one in run.rounds])
    assert [one.text for one in statements(run, rows(run)) if "tf32" in one.text] == [
        f"{FP32.workload} default: factors of convolutions are rounded to tf32"
    ]


def test_switches_of_a_users_file_are_told_once_with_what_became_of_them() -> None:
    case = replace(FP32, family="user", workload="model.py:make")
    source = WorkloadSource(
        name=case.workload, family="user", module="/model.py", function="make", builtin=False,
        switches=("torch.backends.cudnn.benchmark = True",),
    )  # fmt: skip
    run = make_run(Times((case, [1e-3])))
    for keep, end in ((False, "--keep-flags leaves them as they are set"), (True, "`default` has all")):
        header = replace(run.header, sources=[source], settings=replace(run.header.settings, keep_flags=keep))
        told = replace(run, header=header)
        (note,) = [one for one in statements(told, rows(told)) if "cudnn" in one.text]
        assert note.text.startswith("model.py:make sets torch.backends.cudnn.benchmark = True: ")
        assert note.text.endswith(end)
        assert note.warning is not keep


def test_networks_by_name_are_said_once_to_have_random_weights_and_those_with_a_file_are_not() -> None:
    untrained = replace(FP32, family="timm", workload="timm:a", parameters={"weights": "random"})
    trained = replace(untrained, workload="timm:b", parameters={"weights": "b.safetensors"})
    run = make_run(Times((untrained, [1e-3]), (replace(untrained, phase="training"), [1e-3]), (trained, [1e-3])))
    (note,) = [one for one in statements(run, rows(run)) if "random" in one.text]
    assert note.text.startswith("timm:a: random weights: ")
    assert note.warning


def test_an_operation_without_a_ceiling_is_named_with_what_to_do() -> None:
    run = make_run(Times((FP32, [1e-3] * 4)))
    apart = {"matmul": {"fp32": 10}, "attention": {"fp32": 10}}
    memory = {FP32.case_id: make_memory(FP32, 1, flops={"fp32": 20}, flops_by_operation=apart)}

    def said(*ceilings: Ceiling) -> list[str]:
        found = holding(replace(run, memory=memory), *ceilings)
        return [note.text for note in statements(found, frame.run_rows(found))]

    assert said(make_ceiling("fp32", 1e9)) == [
        "no ceiling of attention in fp32 is known here: ampbench study ceilings, then measure anew"
    ]
    assert said() == said(make_ceiling("fp32", 1e9), make_ceiling("fp32", 1e9, "attention")) == []


def test_a_dtype_that_ceilings_show_to_be_emulated_is_said_to_be() -> None:
    cpu = DeviceDescription(type="cpu", available=True, name="a CPU", arithmetic={"bf16": "native", "fp16": "native"})
    run = make_run(Times((FP32, [1e-3] * 4), (make_case("fp16_pure"), [1e-3] * 4)))
    header = replace(run.header, environment=replace(run.header.environment, devices=[cpu]))
    found = holding(replace(run, header=header), make_ceiling("fp32", 1e9), make_ceiling("fp16", 1e7))
    first = statements(found, frame.run_rows(found))[0]
    assert (first.warning, "fp16 emulated" in first.text, "bf16 native" in first.text) == (True, True, True)


def test_launches_that_torch_did_not_record_though_it_was_to_are_a_warning_with_the_reason() -> None:
    run = make_run(Times((FP32, [1e-3] * 4), (BF16, [1e-3] * 4)))
    why = "skipping cudagraphs due to mutated inputs"
    memory = {FP32.case_id: make_memory(FP32, 1), BF16.case_id: make_memory(BF16, 1, graphs_left_aside=[why])}
    run = replace(run, memory=memory)
    (note,) = (one for one in statements(run, rows(run)) if "graphs" in one.text)
    assert note == Note(
        f"linear_chain bf16_autocast: torch.compile left graphs aside, and launches one by one: {why}", warning=True
    )


def test_why_it_is_not_known_how_busy_an_accelerator_is_is_said_once() -> None:
    run = make_run(Times((FP32, [1e-3] * 4), (BF16, [1e-3] * 4)))
    why = "torch's profiler failed: RuntimeError: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"
    run = replace(run, memory={one.case_id: make_memory(one, 1, busy_undefined=why) for one in (FP32, BF16)})
    (note,) = (one for one in statements(run, rows(run)) if "launches" in one.text)
    assert note == Note(f"linear_chain fp32, linear_chain bf16_autocast: whether launches bound it is not known: {why}")
