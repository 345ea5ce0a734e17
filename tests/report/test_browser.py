"""Pages in headless Chromium: no error, every figure is visible, nothing overlaps."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess

import pytest

from shadowprice.report.labels import outcome_label
from shadowprice.report.reproduction import report
from shadowprice.report.run import run_report

from .helpers import HOSTILE

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium here (Debian: apt-get install chromium)")
DESKTOP, PHONE = 1280, 390
RUNS = ("reserved", "failing", "money")  # those of conftest.py that have a page of their own kind

# Runs inside the page and reports what it found; errors of the page are in the browser's log.
LOOK = """
const box = (element) => {
  const { x, y, width, height } = element.getBoundingClientRect();
  return { x, y, width, height };
};
const seen = (element) => { const at = box(element); return at.width > 0 && at.height > 0; };
const found = { width: innerWidth, scroll: document.documentElement.scrollWidth, plots: [], searches: {} };
found.background = getComputedStyle(document.body).backgroundColor;
found.ink = getComputedStyle(document.body).color;
for (const svg of document.querySelectorAll(".plot svg")) {
  if (!seen(svg)) continue;
  const scale = box(svg).width / svg.viewBox.baseVal.width;
  const texts = [...svg.querySelectorAll("text")].map((text) => {
    const { fontSize, fill } = getComputedStyle(text);
    return { text: text.textContent, size: parseFloat(fontSize) * scale, colour: fill, ...box(text) };
  });
  const drawn = svg.querySelectorAll("path, use").length;
  found.plots.push({ about: svg.getAttribute("aria-label"), drawn, texts, ...box(svg) });
}
const sections = [...document.querySelectorAll("section")];
found.hidden = sections.filter((section) => !seen(section)).map((section) => section.id);
const table = document.querySelector(".records");
if (table) {
  const rows = () => [...table.querySelectorAll("tbody tr:not(.more)")].filter(seen);
  const search = table.querySelector("input"), choice = table.querySelector("select");
  found.all = rows().length;
  for (const words of WORDS) {
    search.value = words;
    search.dispatchEvent(new Event("input"));
    const told = table.querySelector("output").textContent;
    found.searches[words] = { rows: rows().map((row) => row.textContent), told };
  }
  search.value = "";
  search.dispatchEvent(new Event("input"));
  choice.value = choice.options[1].value;
  choice.dispatchEvent(new Event("change"));
  found.chosen = { value: choice.value, rows: rows().map((row) => row.cells[choice.dataset.column].textContent) };
  choice.value = "";
  choice.dispatchEvent(new Event("change"));
  found.sorted = {};
  table.querySelectorAll("thead button").forEach((button, column) => {
    const values = () => rows().map((row) => row.cells[column].dataset.value ?? row.cells[column].textContent);
    button.click();
    const up = values();
    button.click();
    found.sorted[button.textContent] = { up, down: values() };
  });
}
parent.postMessage(JSON.stringify(found), "*");
"""

# Chromium makes no window narrower than 500 pixels, but a frame can be as narrow as a phone.
FRAME = """<!doctype html><pre id="outcome"></pre><script>
addEventListener("message", (event) => { document.getElementById("outcome").textContent = event.data; });
</script><iframe src="page.html" width="WIDTH" height="900" style="border: 0"></iframe>"""


def look_at(page, folder, *, width=DESKTOP, dark=False, words=()):
    """What a browser shows of a page, and its errors."""
    script = LOOK.replace("WORDS", json.dumps(list(words)))
    ours = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = page.replace("script-src ", f"script-src 'sha256-{ours}' ")
    (folder / "page.html").write_text(page.replace("</body>", f"<script>{script}</script></body>"))
    (folder / "frame.html").write_text(FRAME.replace("WIDTH", str(width)))
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    command += ["--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}", "--window-size=1400,1000"]
    command += ["--blink-settings=preferredColorScheme=0"] if dark else []
    command += ["--virtual-time-budget=20000", "--dump-dom", (folder / "frame.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    outcome = re.search(r'<pre id="outcome">(.+?)</pre>', done.stdout, re.DOTALL)
    errors = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert outcome is not None, errors or done.stderr[-2000:]
    return json.loads(html.unescape(outcome[1])), errors


@pytest.fixture(scope="module")
def pages(results, run_of):
    """The page about a reproduction, with the commands of its policies, and pages about runs."""
    command = (
        "shadowprice run QUESTIONS --policy {policy} --accounting {accounting} --no-reclaim --budget {budget}/query"
    )
    rows = [{**row, "command": command.format(**row)} if row["table"] == "main" else row for row in results.rows]
    page = report(type(results)(rows, results.meta, results.queries))
    return {"results": page, **{name: run_report(run_of(name)) for name in RUNS}}


@pytest.fixture(scope="module", params=[(kind, width) for kind in ("results", *RUNS) for width in (DESKTOP, PHONE)])
def shown(request, pages, tmp_path_factory):
    kind, width = request.param
    found, errors = look_at(pages[kind], tmp_path_factory.mktemp("browser"), width=width)
    return {"kind": kind, "asked": width, "errors": errors, **found}


def test_it_opens_without_errors(shown):
    assert shown["errors"] == []
    assert shown["width"] == shown["asked"]


def test_every_section_and_figure_is_visible(shown):
    assert shown["hidden"] == []
    assert len(shown["plots"]) >= {"results": 25, "failing": 2}.get(shown["kind"], 3)
    for plot in shown["plots"]:
        assert plot["drawn"] >= 5, plot["about"]
        assert plot["height"] > 100, plot["about"]


def test_the_page_is_not_wider_than_the_screen(shown):
    assert shown["scroll"] <= shown["width"]
    for plot in shown["plots"]:
        assert plot["x"] + plot["width"] <= shown["width"], plot["about"]


def test_text_in_figures_is_not_clipped_or_too_small(shown):
    for plot in shown["plots"]:
        for text in plot["texts"]:
            assert text["size"] >= 8.5, (plot["about"], text["text"])
            assert text["x"] >= plot["x"] - 4, (plot["about"], text["text"])
            assert text["x"] + text["width"] <= plot["x"] + plot["width"] + 4, (plot["about"], text["text"])


def test_text_in_figures_does_not_overlap(shown):
    for plot in shown["plots"]:
        texts = [text for text in plot["texts"] if text["text"].strip()]
        for i, one in enumerate(texts):
            for other in texts[i + 1 :]:
                wide = min(one["x"] + one["width"], other["x"] + other["width"]) - max(one["x"], other["x"])
                high = min(one["y"] + one["height"], other["y"] + other["height"]) - max(one["y"], other["y"])
                assert wide <= 1 or high <= 3, (plot["about"], one["text"], other["text"])


def test_the_query_table_filters_and_sorts(pages, results, tmp_path):
    name = results.queries[7]["id"]
    found, errors = look_at(pages["results"], tmp_path, words=[name, "CORRECT after", "no such words"])
    assert errors == []
    assert found["all"] == len(results.queries)
    once = found["searches"][name]
    assert once["told"] == f"{len(once['rows'])} of {len(results.queries)} rows"
    assert all(name in row for row in once["rows"])
    solved = [row for row in results.queries if row["outcome"] == "correct"]
    assert len(found["searches"]["CORRECT after"]["rows"]) == len(solved) > 0
    assert found["searches"]["no such words"] == {"rows": [], "told": f"0 of {len(results.queries)} rows"}
    chosen = found["chosen"]
    assert set(chosen["rows"]) == {chosen["value"]}
    outcomes = [outcome_label(row["outcome"]) for row in results.queries]
    assert len(chosen["rows"]) == outcomes.count(chosen["value"])
    grants = found["sorted"]["grant, tokens"]
    assert [int(value) for value in grants["up"]] == sorted(row["grant"] for row in results.queries)
    assert grants["down"] == grants["up"][::-1]
    assert found["sorted"]["outcome"]["up"] == sorted(outcomes)


def test_dark_mode_has_light_text(pages, tmp_path):
    (tmp_path / "light").mkdir()
    (tmp_path / "dark").mkdir()
    light, _ = look_at(pages["reserved"], tmp_path / "light")
    dark, errors = look_at(pages["reserved"], tmp_path / "dark", dark=True)
    assert errors == []
    assert brightness(light["background"]) > 240
    assert brightness(light["ink"]) < 60
    assert brightness(dark["background"]) < 40
    for plot in dark["plots"]:
        assert all(brightness(text["colour"]) > 150 for text in plot["texts"])


def brightness(colour):
    return sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / 3


def test_no_data_is_executed(results, tmp_path):
    queries = [{**row, "id": HOSTILE, "why": HOSTILE, "outcome": HOSTILE} for row in results.queries[:5]]
    rows = [row for row in results.rows if row["table"] in ("main", "findings")]
    rows = [{**row, **({"claim": HOSTILE} if "claim" in row else {"stream": HOSTILE})} for row in rows]
    page = report(type(results)(rows, {"model": HOSTILE, "command": HOSTILE}, queries))
    found, errors = look_at(page, tmp_path, words=["alert(1)"])
    assert errors == []
    assert len(found["searches"]["alert(1)"]["rows"]) == 5
