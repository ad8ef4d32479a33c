"""Run files with probes of autocast's rules, compressed or not: read back whole, refused when damaged."""

import gzip
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from ampbench.errors import StoreError
from ampbench.records.kinds import RULES
from ampbench.records.rules import RuleProbe
from ampbench.records.run import Header
from ampbench.store import RunWriter, encode_run, read_header, read_run
from tests.rule_probes import observation, probe
from tests.stored_runs import COMPLETE, make_header

XPU = probe(observation(observed="float32"))
CPU = probe(observation(observed="unlisted", device="cpu"), device="cpu")
NAMES = ["rules.jsonl", "rules.jsonl.gz"]


@pytest.fixture
def header() -> Header:
    return make_header(explains=RULES)


def written(path: Path, header: Header, *probes: RuleProbe) -> Path:
    path.write_bytes(encode_run(header, [*probes, COMPLETE], path))
    return path


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_is_read_back(name: str, header: Header, tmp_path: Path) -> None:
    path = written(tmp_path / name, header, XPU, CPU)
    stored = read_run(path)
    assert (stored.header, stored.footers) == (header, [COMPLETE])
    assert stored.of(RuleProbe) == {"xpu": XPU, "cpu": CPU}
    assert list(stored.of(RuleProbe)) == ["xpu", "cpu"]
    assert (stored.complete, stored.cut) == (True, False)
    assert read_header(path) == header
    assert path.read_bytes().startswith(b"\x1f\x8b") == name.endswith(".gz")


def test_a_file_written_line_by_line_is_that_of_the_whole_run(header: Header, tmp_path: Path) -> None:
    with RunWriter.create(tmp_path, header) as writer:
        writer.append(XPU)
        writer.append(CPU, COMPLETE)
    assert writer.path.read_bytes() == encode_run(header, [XPU, CPU, COMPLETE], writer.path)


def test_the_same_run_is_the_same_bytes_whatever_it_is_called(header: Header) -> None:
    assert encode_run(header, [XPU], Path("a.gz")) == encode_run(header, [XPU], Path("b.gz"))
    assert gzip.decompress(encode_run(header, [XPU], Path("a.gz"))) == encode_run(header, [XPU], Path("a.jsonl"))


@pytest.mark.parametrize("kept", [3, 12, 0.5, -1])
def test_a_truncated_compressed_file_is_refused_and_never_taken_for_a_cut(
    kept: float, header: Header, tmp_path: Path
) -> None:
    path = written(tmp_path / "rules.jsonl.gz", header, XPU, CPU)
    data = path.read_bytes()
    path.write_bytes(data[: int(kept * len(data)) if isinstance(kept, float) else kept])
    with pytest.raises(StoreError) as caught:
        read_run(path)
    assert str(caught.value).startswith(f"{path}, ")
    assert "damaged: " in str(caught.value)


@pytest.mark.parametrize(
    "data", [b"\x1f\x8bgarbage", b"\x1f\x8b\x08" + b"\x00" * 40], ids=["no gzip at all", "nothing but a beginning"]
)
def test_what_only_begins_as_gzip_is_refused_with_its_name(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "given.jsonl.gz"
    path.write_bytes(data)
    for read in (read_run, read_header):
        with pytest.raises(StoreError, match=r"given\.jsonl\.gz, line 1: "):
            read(path)


def test_a_byte_flipped_within_a_compressed_file_is_refused(header: Header, tmp_path: Path) -> None:
    path = written(tmp_path / "rules.jsonl.gz", header, XPU, CPU)
    data = bytearray(path.read_bytes())
    for position in range(10, len(data), 37):
        path.write_bytes(bytes([*data[:position], data[position] ^ 0x10, *data[position + 1 :]]))
        with pytest.raises(StoreError):
            read_run(path)


def test_other_data_compressed_is_another_programs_file(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(b"a line\nanother\n"))
    with pytest.raises(StoreError, match="line 1: no header of an ampbench run: this is another program's file"):
        read_run(path)


def test_a_compressed_run_cannot_be_resumed_and_stays_as_it_is(header: Header, tmp_path: Path) -> None:
    path = written(tmp_path / "rules.jsonl.gz", header, XPU)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"cannot resume .*rules\.jsonl\.gz: it is compressed"):
        RunWriter.reopen(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"observed": "flaot32"}, "observed`"),
        ({"how": "guessed"}, "device|fake tensors"),
    ],
)
def test_words_that_mean_nothing_are_neither_read_nor_written(
    changed: dict[str, str], message: str, header: Header, tmp_path: Path
) -> None:
    odd = replace(XPU, observations=[replace(XPU.observations[0], **changed)])
    with pytest.raises(StoreError, match=f"line 2: damaged: Expected `str` matching .*{message}"):
        read_run(written(tmp_path / "odd.jsonl", header, odd))
    with RunWriter.create(tmp_path, header) as writer, pytest.raises(StoreError, match=message):
        writer.append(odd)


def test_a_field_that_there_is_not_is_damage(header: Header, tmp_path: Path) -> None:
    path = written(tmp_path / "odd.jsonl", header, XPU)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["rules"]["observations"][0]["nots"] = "x"
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    with pytest.raises(StoreError, match=r"line 2: damaged, or written by a newer ampbench .*nots"):
        read_run(path)
