"""Stored probes of autocast's rules: what is written is read, what is not one is refused by name."""

import gzip
import json
from pathlib import Path

import pytest

from ampbench.errors import StoreError
from ampbench.records.environments import Environment
from ampbench.records.rules import RuleClaim, StoredRules
from ampbench.store.rules import encode_rules, read_rules
from tests.rule_probes import observation, probe

ENVIRONMENT = Environment(
    host="h", system="s", cpu="c", cpu_count=2, python_version="3.11", torch_version="2.15.0", numpy_version="2",
    threads=1,
)  # fmt: skip
CLAIM = RuleClaim(name="a", device="xpu", source="", said="", found="", holds=None, how="device")
RULES = StoredRules(
    note="seen", environment=ENVIRONMENT, probes=[probe(observation(observed="float32"), claims=[CLAIM])]
)


def written(path: Path, **changed: object) -> Path:
    document = json.loads(encode_rules(RULES, Path("x.json")))
    document["autocast_rules"] |= changed
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("name", ["rules.json", "rules.json.gz"])
def test_what_is_written_is_read_back(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(encode_rules(RULES, path))
    assert read_rules(path) == RULES
    assert path.read_bytes().startswith(b"\x1f\x8b") == name.endswith(".gz")


def test_the_same_rules_are_the_same_bytes() -> None:
    assert encode_rules(RULES, Path("a.gz")) == encode_rules(RULES, Path("b.gz"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no stored probe of autocast's rules"),
        (b"# Readme\n", "no stored probe of autocast's rules"),
        (b"\xff\xfe\x00", "no stored probe of autocast's rules"),
        (b'{"header":{"schema":3}}', "no stored probe of autocast's rules"),
        (gzip.compress(b"{}" * 1000)[:30], "damaged: "),
        (b"\x1f\x8bgarbage", "damaged: "),
        (b'{"autocast_rules":{"schema":9}}', "schema 9, and this ampbench reads 1; upgrade ampbench"),
        (b'{"autocast_rules":{"schema":0}}', "schema 0, and this ampbench reads 1"),
        (b'{"autocast_rules":{"schema":1}}', "damaged: "),
    ],
)
def test_what_is_no_probe_is_refused_in_one_line_with_its_name(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "given.json"
    path.write_bytes(data)
    with pytest.raises(StoreError) as caught:
        read_rules(path)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_bytes(encode_rules(RULES, path)[:-20])
    with pytest.raises(StoreError, match="another program's file, or cut"):
        read_rules(path)


def test_a_field_that_there_is_not_is_damage(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"damaged: .*nots"):
        read_rules(written(tmp_path / "odd.json", nots="x"))


@pytest.mark.parametrize(
    ("changed", "message"),
    [({"observed": "flaot32"}, "a rule that there is not: 'flaot32'"), ({"how": "guessed"}, "not: 'guessed'")],
)
def test_words_that_mean_nothing_are_damage(changed: dict[str, str], message: str, tmp_path: Path) -> None:
    document = json.loads(encode_rules(RULES, Path("x.json")))["autocast_rules"]["probes"]
    document[0]["observations"][0] |= changed
    with pytest.raises(StoreError, match=message):
        read_rules(written(tmp_path / "odd.json", probes=document))


def test_two_probes_of_one_device_are_damage(tmp_path: Path) -> None:
    twice = json.loads(encode_rules(RULES, Path("x.json")))["autocast_rules"]["probes"] * 2
    with pytest.raises(StoreError, match="two probes of one device"):
        read_rules(written(tmp_path / "odd.json", probes=twice))


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"none\.json: cannot be read: No such file"):
        read_rules(tmp_path / "none.json")
