"""Laws of the page in a browser: no error, nothing loaded, every figure visible, sliders move, nothing is cut off."""

from __future__ import annotations

import html
import json
import re
import subprocess
from pathlib import Path

import pytest

from fedsw.desk.compare.comparison_grid import make_grid
from fedsw.desk.compare.comparison_page import read_comparison
from fedsw.desk.planning.run_plan import plan_document
from fedsw.runs.report.run_documents import WhatIfs, page
from fedsw.runs.view import read_whole_run
from fedsw.runs.write import write_card
from tests.browser import BROWSER, MISSING, opened
from tests.desk.compare.comparing import table_of
from tests.runs.report.test_document import plan

pytestmark = pytest.mark.slow
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
WATCH = """<script>
var faults = [];
addEventListener("error", function (each) { faults.push(String(each.message)); });
addEventListener("securitypolicyviolation", function (each) { faults.push(each.blockedURI); });
</script>"""
LOOK = """<script>
var said = [];
document.querySelectorAll(".slider").forEach(function (box) {
  var words = new Set();
  box.querySelectorAll("input").forEach(function (input) {
    for (var at = 0; at <= Number(input.max); at++) {
      input.value = at; input.dispatchEvent(new Event("input")); words.add(box.querySelector("output").textContent);
    }
  });
  said.push(Array.from(words));
});
var figures = Array.from(document.querySelectorAll("figure svg, figure img"));
document.documentElement.innerHTML = "<pre id=found>" + JSON.stringify({
  faults: faults, said: said, figures: figures.map(function (each) { return each.getBoundingClientRect().height; }),
  loaded: performance.getEntriesByType("resource").length, wide: document.documentElement.scrollWidth - innerWidth
}).replace(/</g, "&lt;") + "</pre>";
</script>"""
PLAN = {
    "verdict": "feasible",
    "forecast": {
        "thresholds": {"feasible": 0.3},
        "what_ifs": [{"records": n, "epsilon": e, "kept": n * e / 100} for n in (10, 20) for e in (1.0, 3.0, 5.0)],
    },
}


def seen(text: str, place: Path, *, width: int) -> dict:
    """What a browser of that width makes of a page."""
    if BROWSER is None:
        pytest.skip(MISSING)
    path = place / "page.html"
    path.write_text(text.replace("<head>", f"<head>{WATCH}").replace("</body>", f"{LOOK}</body>"), encoding="utf-8")
    command = [BROWSER, *FLAGS, f"--user-data-dir={place / 'profile'}", f"--window-size={width},900", "--dump-dom"]
    found = subprocess.run([*command, path.as_uri()], capture_output=True, text=True, timeout=120)
    match = re.search(r'<pre id="found">(.*?)</pre>', found.stdout, flags=re.DOTALL)
    assert match, found.stderr[-2000:]
    return json.loads(html.unescape(match[1]))


@pytest.mark.parametrize("width", [500, 1200])
def test_a_page_reads_in_a_browser(central, local, tmp_path, width):
    text = page([read_whole_run(central), read_whole_run(local)], what_ifs=[WhatIfs.of_plan(PLAN)])
    found = seen(text, tmp_path, width=width)
    assert found["faults"] == [] and found["loaded"] == 0
    assert len(found["figures"]) == text.count("<figure>") > 4 and min(found["figures"]) > 40
    assert found["wide"] <= 0, "the page itself is not wider than the screen; tables and figures scroll in their frames"
    beliefs, what_ifs, _ = found["said"]
    assert len(beliefs) == 13 and len(what_ifs) >= 4 and "50 % sure beforehand" in "".join(beliefs)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation_on_a_page(central, distributed, tmp_path, scheme):
    path = tmp_path / "page.html"
    path.write_text(
        page([read_whole_run(central), read_whole_run(distributed)], what_ifs=[WhatIfs.of_plan(PLAN)]), encoding="utf-8"
    )
    with opened() as view:
        view.page.emulate_media(color_scheme=scheme)
        view.goto(path)
        assert (view.outside(), view.faults, view.violations()) == ([], [], {})


def test_axe_finds_no_violation_on_other_pages(central, tmp_path):
    compared = tmp_path / "compare"
    compared.mkdir()
    table_of(compared, make_grid("fair-classification", methods=["central", "none"], epsilons=[1, 3], seeds=1))
    card = write_card(central, tmp_path / "card.html").read_text()
    for text in (read_comparison(compared).page(), plan_document(plan()).page(), card):
        path = tmp_path / "page.html"
        path.write_text(text, encoding="utf-8")
        with opened() as view:
            view.goto(path)
            assert (view.outside(), view.faults, view.violations()) == ([], [], {})


def test_axe_finds_a_picture_without_words(tmp_path):
    path = tmp_path / "page.html"
    path.write_text(
        '<html lang="en"><title>a</title><main><h1>a</h1><img src="data:,"></main></html>', encoding="utf-8"
    )
    with opened() as view:
        view.goto(path)
        assert list(view.violations()) == ["image-alt"]


def test_without_its_script_the_page_says_the_same(central):
    text = page([read_whole_run(central)])
    table = re.search(r"<table data-sliders=\"rows\">.*?</table>", text, flags=re.DOTALL)[0]
    for sentence in re.findall(r'data-says="([^"]*)"', text):
        assert set(re.findall(r"[\d.]+ %", sentence)) <= set(
            re.findall(r"[\d.]+ %", re.sub(r'data-says="[^"]*"', "", table))
        )
