"""The atlas: which networks it has, what of it is left to measure, and what its page says of what was measured."""

from pathlib import Path

from msgspec.structs import replace

from ampbench.records.run import Footer, Selection
from ampbench.store import RunWriter
from benchmarks import atlas
from benchmarks.atlas import MOST, TOGETHER, command, page, plan
from tests.report.large_runs import write_zoo_run
from tests.stored_runs import COMPLETE, make_case, make_header

NAMES = {"torchvision": ("resnet18", "resnet50", "vgg11", "alexnet"), "timm": tuple(f"net{one}" for one in range(45))}


def test_all_networks_are_measured_in_inference_and_a_third_in_training() -> None:
    planned = plan(NAMES)
    by_phase = {
        phase: [name for one in planned if one.phase == phase for name in one.workloads] for phase in atlas.PHASES
    }
    assert sorted(by_phase["inference"]) == sorted(f"{library}:{name}" for library in NAMES for name in NAMES[library])
    assert len(by_phase["training"]) == 2 + 15
    assert set(by_phase["training"]) < set(by_phase["inference"])
    assert max(len(one.workloads) for one in planned) == TOGETHER
    assert len({one.label for one in planned}) == len(planned) == 6


def stored(results: Path, label: str, workloads: tuple[str, ...], footer: Footer | None) -> str:
    header = replace(make_header(selection=Selection(workloads=list(workloads))), label=label, run=f"run{len(label)}")
    with RunWriter.create(results, header, [make_case(workload=name) for name in workloads]) as writer:
        if footer is not None:
            writer.append(footer)
    return header.run


def test_a_run_that_is_complete_is_left_and_one_that_was_broken_off_goes_on(tmp_path: Path) -> None:
    first, second, *_ = plan(NAMES)
    words = command(first, tmp_path)
    assert words is not None
    assert words[3 : 3 + 4] == ["run", *first.workloads[:3]]
    assert words[words.index("--label") + 1] == first.label
    stored(tmp_path, first.label, first.workloads, COMPLETE)
    assert command(first, tmp_path) is None
    run = stored(
        tmp_path, f"{second.label}", second.workloads, Footer(ended="interrupted", finished_at="2026-01-31T12:05:00Z")
    )
    words = command(second, tmp_path)
    assert words is not None
    assert words[words.index("--resume") + 1] == run


def test_its_page_has_the_networks_that_gain_most_of_each_phase(tmp_path: Path) -> None:
    write_zoo_run(tmp_path, networks=120)
    said = page(tmp_path)
    parts = said.split("## In ")[1:]
    assert [part.partition("\n")[0] for part in parts] == ["inference", "training"]
    for part in parts:
        rows = [line.split(" | ") for line in part.splitlines() if line.startswith("| timm:")]
        assert 10 < len(rows) <= MOST
        speeds = [float(row[2].partition("x")[0]) for row in rows if row[1] != "fp32"]
        assert speeds == sorted(speeds, reverse=True)
