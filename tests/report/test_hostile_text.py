"""Whatever a run's texts say, the page shows them as text: parsed by html5lib, as browsers do."""

import base64
import gzip
import json
import re
from collections import Counter

import html5lib
import pytest
from bs4 import BeautifulSoup
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ampbench.report.material import Material
from ampbench.report.page import make_page
from ampbench.show.page import fit
from tests.compared_runs import Times, environment, make_run, noisy
from tests.report.hostile_runs import MEGABYTE, PATHS, TEXTS, hostile_material
from tests.report.materials import make_material
from tests.stored_runs import make_case, make_header

HTML = """
a abbr b body button caption code dd details div dl dt em figcaption figure footer h1 h2 h3 h4 head hr html i input
label legend li main meta nav ol option output p pre script section select small span strong style sub summary sup table
tbody td tfoot th thead title tr ul br col colgroup wbr time header
"""
SVG = "svg g path text rect line circle defs clipPath linearGradient stop tspan"
ALLOWED = {*HTML.split(), *SVG.split()}
"""Elements that our templates and Vega's SVG may use; none of them loads anything."""


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return hostile_material(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="module")
def written(material: Material) -> str:
    return make_page(material)


@pytest.fixture(scope="module")
def parsed(written: str) -> BeautifulSoup:
    return BeautifulSoup(written, "html5lib")


@pytest.fixture(scope="module")
def said(parsed: BeautifulSoup) -> str:
    """All that a reader reads, the text of drawings and of attributes with it."""
    attributes = [str(value) for tag in parsed.body.find_all(True) for value in tag.attrs.values()]
    return "\n".join([parsed.body.get_text(), *attributes])


def test_the_page_has_its_own_scripts_and_styles_alone(parsed: BeautifulSoup):
    scripts = parsed.find_all("script")
    assert [tag.get("id") for tag in scripts] == [None, "payload", "library", None]
    assert len(parsed.find_all("style")) == 1
    assert len(parsed.find_all("title")) == 1
    for tag in scripts:
        assert "alert(1)" not in str(tag.string)


def test_no_element_comes_from_a_text(parsed: BeautifulSoup):
    assert {tag.name for tag in parsed.find_all(True)} <= ALLOWED
    assert parsed.find("img") is None
    assert not [tag for tag in parsed.find_all("b") if tag.get_text() == "bold"]


def test_no_attribute_runs_or_loads_anything(parsed: BeautifulSoup):
    for tag in parsed.find_all(True):
        for name, value in tag.attrs.items():
            assert not name.startswith("on"), tag
            assert "javascript:" not in str(value) or name not in ("href", "src", "action", "xlink:href"), tag
            assert re.fullmatch(r"[a-z][a-zA-Z0-9:_-]*", name), (name, tag.name)


def test_ids_and_styles_hold_no_text_of_a_run(parsed: BeautifulSoup):
    main = parsed.main
    for tag in main.find_all(True):
        for name in ("id", "for", "aria-labelledby", "aria-describedby", "aria-controls", "headers", "data-chart"):
            assert all(re.fullmatch(r"[\w.-]+", one) for one in str(tag.get(name, "x")).split()), (name, tag.name)
        if tag.find_parent("svg") is None and tag.name != "svg":
            assert re.fullmatch(r"(--[a-z]+:(-?[\d.]+%|var\(--[\w-]+\));?\s*)*", str(tag.get("style", ""))), tag


def test_ids_are_unique(parsed: BeautifulSoup):
    ids = Counter(str(tag["id"]) for tag in parsed.find_all(id=True) if tag.find_parent("svg") is None)
    assert [name for name, count in ids.items() if count > 1] == []


@pytest.mark.parametrize("what", [name for name in TEXTS if name not in ("half",)])
def test_a_text_is_shown_as_it_is(said: str, what: str):
    assert fit(TEXTS[what]) in said


def test_workload_names_are_shown_whole_or_cut_at_their_end(said: str):
    for path in PATHS:
        assert fit(path)[:20] in said


def test_no_character_that_turns_text_or_controls_is_on_the_page(written: str):
    assert not re.search(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]", written
    )
    written.encode("utf-8")


def test_a_megabyte_of_text_does_not_make_a_page_of_megabytes(written: str):
    assert MEGABYTE not in written
    assert len(written) < 4_000_000


def test_the_page_is_html_without_an_error(written: str):
    """As the standard's parser counts them: text that broke out of its place would leave some."""
    parser = html5lib.HTMLParser()
    parser.parse(written)
    assert [(place, code, data) for place, code, data in parser.errors if code != "self-closing-flag-on-end-tag"] == []


def test_what_a_browser_unpacks_holds_texts_as_data_alone(parsed: BeautifulSoup):
    text = gzip.decompress(base64.b64decode(str(parsed.find("script", id="payload").string))).decode()
    found = json.loads(text)
    assert "\u202e" not in text
    for chart in found["charts"].values():
        spec = json.dumps(without_values(chart["spec"]))
        for name in ("alert(1)", "toString", "{{7*7}}", "onerror"):
            assert name not in spec


def without_values(spec: object) -> object:
    """Return a specification without what Vega takes as it is: the values of a domain, the text of a title."""
    if isinstance(spec, dict):
        return {name: without_values(item) for name, item in spec.items() if name not in ("domain", "title", "sort")}
    return [without_values(item) for item in spec] if isinstance(spec, list) else spec


@settings(max_examples=5, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=40))
def test_any_name_makes_a_page_of_the_same_structure(text: str):
    """A case, a host and a label of any text."""

    def elements(name: str) -> Counter[str]:
        case = make_case("fp32", workload=f"{name}/x", family="user")
        header = environment(make_header(label=name), host=name, cpu=name)
        soup = BeautifulSoup(
            make_page(make_material(make_run(Times((case, noisy(1e-3, 4))), header=header))), "html5lib"
        )
        tags = (tag.name for tag in soup.find_all(True) if tag.find_parent("svg") is None)
        return Counter(tag for tag in tags if tag != "wbr")  # where a line may end

    assert elements(text) == elements("plain")
