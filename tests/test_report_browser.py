"""The report in a headless Chromium: no overflow at any width, both schemes readable, a silent console, search and
keys."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dagtrain.report.picture import DEVICE_COLOURS
from hdl.fixed import IntArray
from tests.flow_support import Case, new_case, quick_costs
from tests.suites import quick
from tests.test_report import COSIM, EPOCHS, TIMELINE, TIMING

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WIDTHS = (400, 1280, 800, 1920)
# on the console of the page, and at the end what the checks found, as an element's text
BEFORE = """<script>
window.told = [];
window.addEventListener("error", (event) => window.told.push(String(event.message)));
for (const kind of ["error", "warn", "log"]) console[kind] = (...words) => window.told.push(words.join(" "));
</script>"""
AFTER = """<script>
(() => {
  const wide = [...document.body.querySelectorAll("*")].filter((one) => {
    if (one.closest("svg") || one.closest(".scroll > *")) return false;
    const box = one.getBoundingClientRect();
    return box.width && box.right > document.documentElement.clientWidth + 1;
  });
  const numbers = (text) => text.match(/[0-9.]+/g).map(Number);
  const linear = (c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
  const light = (rgb) => {
    const [r, g, b] = rgb.slice(0, 3).map(linear);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const colour = numbers(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  let contrast = 99, faint = "";
  for (const one of document.body.querySelectorAll("h1,h2,h3,p,td,th,a,li,b,summary,span,label")) {
    if (one.closest("svg") || !one.textContent.trim()) continue;
    const pair = [light(numbers(getComputedStyle(one).color)), light(behind(one))].sort((a, b) => b - a);
    const found = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (found < contrast) [contrast, faint] = [found, one.outerHTML.slice(0, 80)];
  }
  const cut = [...document.querySelectorAll("svg text")].filter((one) => {
    const box = one.getBoundingClientRect(), around = one.ownerSVGElement.getBoundingClientRect();
    return box.width && (box.left < around.left - 1 || box.right > around.right + 1 ||
      box.top < around.top - 1 || box.bottom > around.bottom + 1);
  });
  const paper = document.querySelector(".picture-paper");
  const find = document.getElementById("find");
  find.value = "r_node.error";
  find.dispatchEvent(new Event("input"));
  const nodes = [...document.querySelectorAll("#placed-graph [data-node]")];
  const clear = nodes.filter((one) => !one.classList.contains("dim")).map((one) => one.dataset.node);
  const said = document.getElementById("found").textContent;
  find.value = "";
  find.dispatchEvent(new Event("input"));
  const box = document.querySelector('input[data-rows="fifo-table"]');
  box.value = "FIFO of c_node";
  box.dispatchEvent(new Event("input"));
  const fifos = [...document.querySelectorAll("#fifo-table tbody tr")].filter((one) => !one.hidden);
  const filtered = [fifos.map((one) => one.cells[0].textContent), box.closest(".tools").textContent];
  const chosen = () => [...document.querySelectorAll("tr.chosen")].map((one) => one.dataset.node);
  const node = nodes.find((one) => one.dataset.node === "c_node");
  node.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  const clicked = chosen();
  const other = nodes.find((one) => one.dataset.node === "r_node");
  other.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
  const entered = [chosen(), document.activeElement.dataset.node];
  const before = document.querySelector("#placed-graph svg").getAttribute("width");
  document.getElementById("closer").click();
  const after = document.querySelector("#placed-graph svg").getAttribute("width");
  const frame = document.getElementById("placed-graph");
  const pointer = (kind, x) => frame.dispatchEvent(
    new PointerEvent(kind, { bubbles: true, clientX: x, clientY: 50, buttons: 1 }));
  for (let i = 0; i < 12; i++) document.getElementById("closer").click();
  const left = frame.scrollLeft;
  pointer("pointerdown", 150);
  pointer("pointermove", 110);
  const panned = frame.scrollLeft - left;
  const stuck = [...document.querySelectorAll("*")].filter((one) =>
    one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).overflowX === "auto" && one.tabIndex !== 0);
  document.activeElement.blur();
  scrollTo(0, 0);
  parent.postMessage(JSON.stringify({
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    wide: wide.map((one) => one.outerHTML.slice(0, 120)), cut: cut.map((one) => one.outerHTML), contrast,
    faint, said, clear, filtered, clicked, entered,
    zoomed: after / before, reached: nodes.every((one) => one.tabIndex === 0 && one.getAttribute("aria-label")),
    dark: matchMedia("(prefers-color-scheme: dark)").matches, paper: getComputedStyle(paper).fill,
    page: getComputedStyle(document.body).backgroundColor, told: window.told,
    width: innerWidth, panned, stuck: stuck.map((one) => one.outerHTML.slice(0, 120)),
  }), "*");
})();
</script>"""

# Chromium's windows are 500 pixels wide at least, a frame is as wide as it is told
AROUND = """<!doctype html><meta charset="utf-8"><body style="margin: 0"><script>
addEventListener("message", (event) => {
  const found = document.createElement("pre");
  found.id = "checked";
  found.textContent = event.data;
  found.hidden = true;
  document.body.append(found);
  scrollTo(0, 0);
});
</script><iframe src="checked.html" width="WIDTH" height="HEIGHT" style="border: 0"></iframe>"""
# of the page that a screenshot shows, pixels
HEIGHT = 6000
# steps of grey between neighbouring pixels: something that is easily seen, and something at all
SEEN, THERE = 90, 8
# what is seen in a square of so many pixels a side in one scheme is there in the other
SQUARE = 16
# beside the page's content nothing is drawn, pixels
MARGIN = 12

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None and "CI" not in os.environ, reason="there is no chromium on the PATH; `make test` installs it"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A report with everything in it."""
    with pytest.MonkeyPatch.context() as patch:
        quick_costs(patch)
        case = new_case(tmp_path_factory.mktemp("report")).must("import", "place").pretend_emit()
        case.pretend("cosim", ("emit",), COSIM, {"timeline.json": json.dumps(TIMELINE)})
        case.pretend("timing", ("emit",), TIMING)
        case.pretend("train", ("import",), {"train_frames": 32, "held_out_frames": 8, "epochs": EPOCHS})
        case.must("report")
        yield _with_checks(case)


def _with_checks(case: Case) -> Path:
    text = (case.out / "report" / "report.html").read_text()
    path = case.root / "checked.html"
    path.write_text(text.replace("<head>", f"<head>{BEFORE}", 1).replace("</body>", f"{AFTER}</body>", 1))
    return path


def looked_at(page: Path, width: int, dark: bool) -> tuple[dict[str, Any], Path]:
    """What the checks found at a width, in a scheme, and a screenshot."""
    assert CHROMIUM is not None, "CI has no chromium: `make test` installs it"
    around, shot = page.with_name(f"around-{width}.html"), page.with_name(f"{width}-{dark}.png")
    around.write_text(AROUND.replace("WIDTH", str(width)).replace("HEIGHT", str(HEIGHT)))
    words = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={page.parent / 'profile'}",
        f"--window-size={width + 100},{HEIGHT}", "--hide-scrollbars", f"--screenshot={shot}",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        "--virtual-time-budget=3000", "--dump-dom", around.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    found = re.search(r'<pre id="checked" hidden="">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    text = found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"').replace("&amp;", "&")
    result = json.loads(text)
    assert isinstance(result, dict)
    return result, shot


def contrasts(shot: Path, width: int) -> IntArray:
    """Of a screenshot's pixels the greatest step of grey to the left or upper neighbour, of a page so wide."""
    grey = np.asarray(Image.open(shot).convert("L"), np.int64)[:, :width]
    return np.maximum(
        np.abs(np.diff(grey, axis=1, prepend=grey[:, :1])), np.abs(np.diff(grey, axis=0, prepend=grey[:1]))
    )


def lost(shown: IntArray, other: IntArray) -> list[tuple[int, int]]:
    """(x, y) of squares in which something is seen in one scheme and nothing is there in the other."""
    rows, columns = (size // SQUARE * SQUARE for size in shown.shape)
    squares = [
        steps[:rows, :columns].reshape(rows // SQUARE, SQUARE, columns // SQUARE, SQUARE).max((1, 3))
        for steps in (shown, other)
    ]
    at = np.argwhere((squares[0] >= SEEN) & (squares[1] < THERE)) * SQUARE
    return [(int(x), int(y)) for y, x in at]


@needs_chromium
@pytest.mark.parametrize("width", quick(1, WIDTHS))
def test_the_page_at_a_width(width: int, page: Path) -> None:
    (light, light_shot), (dark, dark_shot) = (looked_at(page, width, scheme) for scheme in (False, True))
    check_page(light, width, dark=False)
    check_page(dark, width, dark=True)
    shown = [contrasts(shot, width) for shot in (light_shot, dark_shot)]
    assert min((steps >= SEEN).mean() for steps in shown) > 0.005
    assert (lost(*shown), lost(*reversed(shown))) == ([], [])
    for steps in shown:
        assert not (steps[:, 1:MARGIN] >= THERE).any()
        assert not (steps[:, -MARGIN:] >= THERE).any()


def check_page(found: dict[str, Any], width: int, dark: bool) -> None:
    assert found["told"] == []
    assert found["dark"] == dark
    assert (found["overflow"], found["wide"], found["cut"]) == (0, [], [])
    assert found["width"] == width
    assert found["contrast"] >= 4.5, found["faint"]
    assert found["paper"] == found["page"] or not dark
    # search, a click, a key, zoom
    assert found["clear"] == ["r_node.error"]
    assert re.fullmatch(r"1 of \d+ nodes", found["said"])
    names, told = found["filtered"]
    assert names
    assert all(name.startswith("FIFO of c_node") for name in names)
    assert re.search(rf"\b{len(names)} of \d+ rows", told)
    assert found["clicked"] == ["c_node"]
    assert found["entered"] == [["r_node"], "r_node"]
    assert found["zoomed"] == pytest.approx(1.25)
    assert found["reached"]
    # a drag moves the graph, and what scrolls does so by keys
    assert found["panned"] == pytest.approx(40, abs=1)
    assert found["stuck"] == []


def test_white_names_on_the_colours_of_devices_are_readable() -> None:
    for colour in DEVICE_COLOURS:
        shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
        light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        assert 1.05 / (light + 0.05) >= 4.5, colour
