"""The whole page: it needs nothing else, is sound HTML, draws its charts, and shows texts as text."""

import base64
import hashlib
import itertools
import re
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import html5lib
import pytest
from bs4 import BeautifulSoup
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ampbench.core.units import FORMATS, format_bytes, format_seconds
from ampbench.report import page
from ampbench.report.material import Material
from ampbench.report.page import LONGEST, fit, make_page
from ampbench.show.charts import Chart, Picture
from tests.compared_runs import Times, environment, make_run, noisy
from tests.report.hostile_runs import MEGABYTE, PATHS, TEXTS, hostile_material
from tests.report.materials import make_material
from tests.stored_runs import make_case, make_header

HTML = """
a abbr b body button caption code dd details div dl dt em figcaption figure footer h1 h2 h3 h4 head hr html i input
label legend li main meta nav ol option output p pre script section select small span strong style sub summary sup table
tbody td tfoot th thead title tr ul br col colgroup wbr time header
"""
SVG = "svg g path text rect line circle defs clipPath linearGradient stop tspan title"
ALLOWED = {*HTML.split(), *SVG.split()}
"""Elements that our templates and Vega's SVG may use; none of them loads anything."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of hostile runs: every text in them is what someone might try."""
    return make_page(hostile_material(tmp_path_factory.mktemp("hostile")))


@pytest.fixture(scope="module")
def parsed(written: str) -> BeautifulSoup:
    return BeautifulSoup(written, "html5lib")


def test_only_the_scripts_of_the_page_run_and_nothing_is_loaded(parsed: BeautifulSoup, written: str) -> None:
    tag = parsed.find("meta", attrs={"http-equiv": "Content-Security-Policy"})
    policy = {name: values for name, *values in (part.split() for part in str(tag["content"]).split(";"))}
    scripts = [str(script.string).encode() for script in parsed.find_all("script")]
    digests = {f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'" for script in scripts}
    assert (len(scripts), set(policy["script-src"])) == (2, digests)
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == ["'none'"]
    assert len(parsed.find_all("style")) == 1
    for style in re.findall(r"<style>(.*?)</style>", written, re.DOTALL):
        assert "@import" not in style
        assert "url(" not in style
    for tag in parsed.find_all(True):
        for name in ("src", "srcset", "data", "poster", "action", "formaction", "background"):
            assert not tag.get(name), tag
        for name in ("href", "xlink:href"):
            assert re.match(r"#[\w-]*$", str(tag.get(name, "#"))), tag


def test_no_element_attribute_or_id_comes_from_a_text(parsed: BeautifulSoup) -> None:
    assert {tag.name for tag in parsed.find_all(True)} <= ALLOWED
    assert not [tag for tag in parsed.find_all("b") if tag.get_text() == "bold"]
    for tag in parsed.find_all(True):
        for name in tag.attrs:
            assert not name.startswith("on"), tag
            assert re.fullmatch(r"[a-z][a-zA-Z0-9:_-]*", name), (name, tag.name)
    for tag in parsed.main.find_all(True):
        for name in ("id", "aria-labelledby"):
            assert all(re.fullmatch(r"[\w.-]+", text) for text in str(tag.get(name, "x")).split()), (name, tag.name)
    ids = Counter(str(tag["id"]) for tag in parsed.find_all(id=True))
    assert [name for name, count in ids.items() if count > 1] == []


def test_every_text_is_shown_as_it_is_or_cut(parsed: BeautifulSoup, written: str) -> None:
    attributes = [str(value) for tag in parsed.body.find_all(True) for value in tag.attrs.values()]
    shown_text = "\n".join([parsed.body.get_text(), *attributes])
    assert [name for name, text in TEXTS.items() if name != "half" and fit(text) not in shown_text] == []
    assert [path for path in PATHS if fit(path)[:20] not in shown_text] == []
    assert MEGABYTE not in written
    assert len(written) < 4_000_000


def test_no_character_that_turns_text_or_controls_is_on_the_page(written: str) -> None:
    unfit = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]"
    assert not re.search(unfit, written)
    written.encode("utf-8")


def test_the_page_is_html_without_an_error(written: str) -> None:
    """As the standard's parser counts them: text that broke out of its place would leave some."""
    parser = html5lib.HTMLParser()
    parser.parse(written)
    assert [(place, code, data) for place, code, data in parser.errors if code != "self-closing-flag-on-end-tag"] == []


NAMES = st.text(st.characters(exclude_categories=()), min_size=1, max_size=60)


@settings(max_examples=5, suppress_health_check=[HealthCheck.too_slow])
@given(NAMES)
def test_any_name_makes_a_page_of_the_same_structure(text: str) -> None:
    def structure(name: str) -> list[str]:
        header = environment(make_header(run="run", label=name), host=name, cpu=name)
        run = make_run(Times((make_case(workload=name or "x"), noisy(1e-3))), header=header)
        return [tag.name for tag in BeautifulSoup(make_page(make_material(run)).replace("<wbr>", ""), "html5lib")()]

    assert structure(text) == structure("a")


def test_every_section_has_its_heading_and_its_place_in_the_navigation(readme_run: Material) -> None:
    parsed = BeautifulSoup(make_page(readme_run, home="index.html"), "html5lib")
    assert parsed.nav.a["href"] == "index.html"
    headings = [tag.name for tag in parsed.find_all(["h1", "h2", "h3", "h4"])]
    assert (headings[0], headings.count("h1")) == ("h1", 1)
    assert all(int(after[1]) <= int(before[1]) + 1 for before, after in itertools.pairwise(headings))
    for section in parsed.find_all("section"):
        assert parsed.find(id=section["aria-labelledby"]).get_text(strip=True)
        assert parsed.find("a", href=f"#{section['id']}") is not None
    for table in parsed.find_all("table"):
        assert table.caption.get_text(strip=True)
        assert all(cell.get("scope") == "col" for cell in table.find_all("th"))
    for figure in parsed.find_all("figure"):
        assert len(str(figure.find("svg", role="img")["aria-label"])) > 20
        assert figure.find("p", class_="alt").get_text(strip=True)
    words = set(re.findall(r"[A-Za-z]+", parsed.main.get_text(" ")))
    assert not words & {"undefined", "NaN", "nan", "None", "null"}
    assert len(str(parsed)) < 150_000


def test_the_script_that_sorts_knows_every_unit_that_cells_are_written_in() -> None:
    script = (Path(page.__file__).parent / "assets" / "tables.js").read_text()
    written = [format_seconds(10.0**power) for power in range(-9, 5)]
    written += [format_bytes(1024.0**power) for power in range(1, 6)]
    written += [FORMATS["count"](10.0**power) for power in range(3, 14)]
    for unit in {text.split()[1] for text in written}:
        assert re.search(rf"\b{unit}: [\d(]", script), unit


SPEC = {
    "mark": "point",
    "encoding": {
        "x": {"field": "speed", "type": "quantitative"},
        "y": {"field": "name", "type": "nominal"},
        "color": {"field": "name", "type": "nominal"},
        "tooltip": [{"field": "name", "title": "network"}, {"field": "speed", "title": "speed"}],
    },
}
ROWS = [{"name": "b", "speed": 2.0}, {"name": "c", "speed": 1.5}]


def svg_of(rows: list[dict[str, Any]], alt: str = "b is fastest") -> str:
    picture = Picture(spec=SPEC, rows=rows)
    return page.drawn(Chart(id="a", title="Speed", alt=alt, pictures=[picture]), picture)


def texts(svg: str) -> list[str]:
    return [text.strip() for text in ElementTree.fromstring(svg).itertext() if text.strip()]


def test_a_chart_is_an_image_with_its_finding_as_its_text_and_each_value_under_the_pointer() -> None:
    alt = '"><img src=x onerror=alert(1)> & \u202e' + "x" * 5000
    svg = svg_of([*ROWS, {"name": None, "speed": None}], alt)
    drawn = ElementTree.fromstring(svg)
    label = drawn.get("aria-label") or ""
    assert drawn.get("role") == "img"
    assert label.startswith('Speed. "><img src=x onerror=alert(1)> & \\u202exxx')
    assert len(label) == LONGEST
    titles = [title.text for title in drawn.iter("{http://www.w3.org/2000/svg}title")]
    assert titles[:2] == ["network: b\nspeed: 2.0", "network: c\nspeed: 1.5"]
    assert ElementTree.fromstring(svg_of([])).tag.endswith("svg")


@pytest.mark.parametrize(
    "name",
    [
        "</text><script>alert(1)</script>",
        '" onload="alert(1)',
        "datum.x",
        "${alert(1)}",
        "]]><!--",
        "a.b[0]",
        "\u202ea",
    ],
)
def test_a_name_in_the_data_reaches_axis_and_legend_as_text_alone(name: str) -> None:
    svg = svg_of([{"name": name, "speed": 2.0}, *ROWS])
    shown = name.replace("\u202e", "\\u202e")[:12]  # a long name is cut
    assert len([text for text in texts(svg) if text.startswith(shown)]) == 2
    elements = [*ElementTree.fromstring(svg).iter()]
    assert {element.tag.partition("}")[2] for element in elements} <= {*SVG.split()}
    assert not [key for element in elements for key in element.attrib if key.startswith("on") or key.endswith("href")]
