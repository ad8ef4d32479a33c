import base64
import gzip
import hashlib
import itertools
import re
from typing import Any

import pytest
from bs4 import BeautifulSoup
from jinja2 import UndefinedError

from ampbench.report import page as pages
from ampbench.report.material import Material
from ampbench.report.page import make_page, render
from ampbench.report.views import View, environment
from tests.compared_runs import BF16, FP32, Times, make_run, noisy
from tests.report.materials import make_material
from tests.stored_runs import make_header

INERT = "text/plain"


@pytest.fixture(scope="module")
def written(readme_run: Material) -> str:
    return make_page(readme_run)


@pytest.fixture(scope="module")
def parsed(written: str) -> BeautifulSoup:
    return BeautifulSoup(written, "html5lib")


def policy_of(soup: BeautifulSoup) -> dict[str, list[str]]:
    tag = soup.find("meta", attrs={"http-equiv": "Content-Security-Policy"})
    assert tag is not None
    parts = [part.split() for part in str(tag["content"]).split(";")]
    return {name: values for name, *values in parts}


def digest(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode('utf-8')).digest()).decode()}'"


def test_only_the_scripts_of_the_page_may_run(parsed: BeautifulSoup):
    running = [str(tag.string) for tag in parsed.find_all("script") if tag.get("type") != INERT]
    library = parsed.find("script", id="library")
    assert library is not None
    running.append(gzip.decompress(base64.b64decode(str(library.string))).decode("utf-8"))
    assert len(running) == 3
    assert set(policy_of(parsed)["script-src"]) == {digest(script) for script in running}


def test_the_policy_lets_nothing_be_loaded_from_anywhere(parsed: BeautifulSoup):
    policy = policy_of(parsed)
    assert policy["default-src"] == ["'none'"]
    assert policy["base-uri"] == policy["form-action"] == ["'none'"]
    assert policy["img-src"] == ["data:"]
    assert set(policy) == {"default-src", "script-src", "style-src", "img-src", "base-uri", "form-action"}


def test_the_page_refers_to_itself_alone(parsed: BeautifulSoup, written: str):
    for tag in parsed.find_all(True):
        for name in ("src", "srcset", "data", "poster", "action", "formaction", "background"):
            assert not tag.get(name), tag
        for name in ("href", "xlink:href"):
            assert str(tag.get(name, "#")).startswith("#"), tag
    for style in re.findall(r"<style>(.*?)</style>", written, re.DOTALL):
        assert "@import" not in style
        assert "url(" not in style
    assert not parsed.find_all(["iframe", "object", "embed", "base", "link"])


def test_what_the_page_links_to_is_on_it(parsed: BeautifulSoup):
    links = [str(tag["href"]) for tag in parsed.find_all("a")]
    assert links
    for link in links:
        assert parsed.find(id=link[1:]) is not None, link


def test_every_section_has_its_heading_and_is_in_the_navigation(parsed: BeautifulSoup):
    headings = [tag.name for tag in parsed.find_all(["h1", "h2", "h3", "h4"])]
    assert headings.count("h1") == 1
    assert headings[0] == "h1"
    assert all(int(after[1]) <= int(before[1]) + 1 for before, after in itertools.pairwise(headings))
    for section in parsed.find_all("section"):
        label = section.get("aria-labelledby")
        heading = parsed.find(id=label)
        assert heading is not None
        assert heading.get_text(strip=True)
        assert parsed.find("a", href=f"#{section['id']}") is not None


def test_tables_say_what_they_hold_and_name_their_columns(parsed: BeautifulSoup):
    for table in parsed.find_all("table"):
        assert table.caption is not None, table
        assert table.caption.get_text(strip=True)
        assert all(cell.get("scope") in ("col", "row", "colgroup", "rowgroup") for cell in table.find_all("th"))


def test_every_chart_is_there_without_javascript_with_its_words(parsed: BeautifulSoup):
    figures = parsed.find_all("figure", attrs={"data-chart": True})
    assert figures
    for figure in figures:
        image = figure.find("svg", role="img")
        assert image is not None
        assert len(str(image["aria-label"])) > 20
        assert figure.figcaption is not None
        assert figure.find("p", class_="alt").get_text(strip=True)


def test_nothing_undefined_is_on_the_page(parsed: BeautifulSoup):
    words = set(re.findall(r"[A-Za-z]+", parsed.main.get_text(" ")))
    assert not words & {"undefined", "NaN", "nan", "None", "null"}


def test_the_page_is_the_same_when_made_again(readme_run: Material, written: str):
    assert make_page(readme_run) == written


def test_the_title_names_the_newest_run_and_the_baseline():
    base = make_run(Times((FP32, noisy(2e-3))), header=make_header(run="base"))
    new = make_run(Times((FP32, noisy(1e-3)), (BF16, noisy(1e-3))), header=make_header(run="new", label="tuned"))

    def title(material: Material) -> str:
        return BeautifulSoup(make_page(material), "html5lib").title.get_text()

    assert title(make_material(new)) == "tuned · ampbench"
    assert title(make_material(new, baseline=base)) == "tuned against base · ampbench"
    assert title(make_material()) == "no run · ampbench"


def test_a_site_is_one_link_away_and_a_lone_page_has_none(readme_run: Material, parsed: BeautifulSoup):
    soup = BeautifulSoup(make_page(readme_run, home="index.html"), "html5lib")
    assert soup.nav.a["href"] == "index.html"
    assert all(tag["href"].startswith("#") for tag in parsed.nav.find_all("a"))


def test_a_page_without_charts_carries_no_library(readme_run: Material):
    view = environment(readme_run)
    assert view is not None
    assert not view.charts
    soup = BeautifulSoup(render([view], title="t"), "html5lib")
    assert soup.find("script", id="library") is None
    assert soup.find(class_="licences") is None
    assert len(policy_of(soup)["script-src"]) == 2


def test_a_name_that_a_template_does_not_get_is_an_error():
    template = pages._templates().from_string("{{ view.titel }}")
    with pytest.raises(UndefinedError, match="titel"):
        template.render(view=View(id="a", title="A"))


def test_templates_escape_and_fit_what_they_are_given():
    template = pages._templates().from_string('<p title="{{ text }}">{{ text }}</p>{{ none }}')
    text: Any = "\"><b>{{7*7}}\u202e'"
    soup = BeautifulSoup(template.render(text=text, none=[1]), "html5lib")
    assert soup.p["title"] == soup.p.get_text() == "\"><b>{{7*7}}\\u202e'"
    assert soup.find("b") is None


def test_a_page_of_over_a_thousand_cases_has_its_tables_and_no_charts(
    readme_run: Material, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pages, "CHARTED", len(readme_run.rows) - 1)
    soup = BeautifulSoup(make_page(readme_run), "html5lib")
    assert len(soup.select("#cases tbody tr")) == 55
    assert not soup.select("figure, #library, #tradeoff")


def test_a_page_of_a_site_leaves_what_draws_to_a_file_beside_it_and_is_small(readme_run: Material):
    page = make_page(readme_run, home="index.html")
    soup = BeautifulSoup(page, "html5lib")
    assert soup.find("script", id="library")["data-file"] == pages.LIBRARY
    assert "'self'" in policy_of(soup)["script-src"]
    assert len(page) <= 100_000
