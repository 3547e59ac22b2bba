"""A report as a real browser shows it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from nasgrow.report.compare.write import write_comparison
from nasgrow.report.family.write import write_family
from nasgrow.report.write import write_report
from tests.report.families import recorded_family
from tests.report.studies import FINAL_ALONE, GROWN, LATER, usual

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
OPTIONS += [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
]
OPTIONS += [
    "--hide-scrollbars",
    "--virtual-time-budget=10000",
    "--enable-logging=stderr",
    "--v=0",
    "--dump-dom",
]
PROBE = """<!DOCTYPE html><link rel="icon" href="data:,">
<iframe src="report/index.html" style="width: {width}px; height: 800px; border: 0"></iframe>
<pre id="seen"></pre>
<script>
  const frame = document.querySelector("iframe");
  frame.onload = async () => {{
    const page = frame.contentDocument, root = page.documentElement;
    const images = [...page.querySelectorAll("figure svg")];
    const ground = () => getComputedStyle(images[0].querySelector("path")).fill;
    const tips = images.map(image => image.querySelectorAll(".tips circle").length);
    const first = page.querySelector(".tips circle"), at = first.getBoundingClientRect();
    first.dispatchEvent(new frame.contentWindow.PointerEvent("pointermove", {{
      bubbles: true, clientX: at.x + at.width / 2, clientY: at.y + at.height / 2
    }}));
    document.getElementById("seen").textContent = JSON.stringify({{
      width: root.clientWidth,
      scroll: root.scrollWidth,
      outside: [...page.querySelectorAll("body *")].filter(
        item => !item.closest(".box") && item.getBoundingClientRect().right > root.clientWidth + 0.5
      ).map(item => item.outerHTML.slice(0, 80)),
      images: images.map(image => image.getBoundingClientRect().width),
      tips: tips.reduce((sum, many) => sum + many, 0),
      tip: page.getElementById("tip").textContent,
      ground: ground(),
      cut: images.filter(image => image.getBoundingClientRect().right > root.clientWidth + 0.5).length,
      headline: page.querySelector(".headline").textContent,
    }});
  }};
</script>
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the report of a study with confirmations, and names that try to be more than text."""
    if CHROMIUM is None:
        pytest.skip("no chromium is installed: the report was not looked at in a browser")
    folder = tmp_path_factory.mktemp("browser")
    recorded = usual(folder / "study")
    for number in range(3, 12):
        name = "<script>console.error('ran')</script>" + "very-long-name" * 8 if number == 3 else None
        recorded.add("search", number, LATER, [1.82 + 0.01 * number], name=name, rate=0.001 * number)
    recorded.confirm("search 1", GROWN, [1.8, 1.81, 1.82])
    recorded.confirm("baseline 1", FINAL_ALONE, [1.9, 1.91, 1.92], first=10)
    write_report(recorded.study, recorded.folder, folder / "report")
    other = usual(folder / "other", name="other-" + "very-long-name" * 5, budget={"flops": 1.6e8})
    both = [(one.study, one.folder) for one in (recorded, other)]
    write_comparison(both, "<b>small</b> and other", folder / "comparison")
    write_family(recorded_family(folder), folder / "family")
    return folder


PAGES = {
    "report": (9, "Not decided: growth beat"),
    "comparison": (4, "Candidates, not a verdict"),
    "family": (3, "Training one model of each of 3"),
}
"""The folders, how many figures each has at least, and how its headline begins."""


@pytest.fixture(scope="module")
def address(place: Path) -> Iterator[str]:
    handler = partial(_Quiet, directory=str(place))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


def look(url: str, profile: Path, scheme: str = "light") -> tuple[str, list[str]]:
    """What a browser makes of a page, and what its console says."""
    assert CHROMIUM is not None
    preferred = f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}"
    command = [CHROMIUM, *OPTIONS, preferred, f"--user-data-dir={profile}", url]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return shown.stdout, re.findall(r"CONSOLE.*", shown.stderr)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_every_figure_is_shown_and_the_page_does_not_scroll_sideways(
    place: Path, address: str, tmp_path: Path, width: int, scheme: str, page: str
) -> None:
    probe = f"probe-{page}-{width}.html"
    (place / probe).write_text(PROBE.format(width=width).replace("report/", f"{page}/"))
    shown, console = look(f"{address}/{probe}", tmp_path, scheme)
    found = re.search(r'<pre id="seen">(.+?)</pre>', shown, re.DOTALL)
    assert found, shown[-2000:]
    seen = json.loads(unescape(found[1]))
    assert seen["width"] == width
    assert seen["scroll"] == width
    assert seen["outside"] == []
    figures, headline = PAGES[page]
    assert len(seen["images"]) == len(list((place / page / "figures").glob("*.svg"))) >= figures
    assert min(seen["images"]) > 300
    assert seen["cut"] == 0, "figures shrink to the width"
    assert seen["tips"] > 10
    assert seen["tip"]
    assert seen["ground"] == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(21, 23, 26)")
    assert seen["headline"].startswith(headline)
    assert console == []


def test_it_works_from_disk_without_a_word_on_the_console(place: Path, tmp_path: Path) -> None:
    shown, console = look((place / "report" / "index.html").as_uri(), tmp_path)
    assert "Not decided: growth beat" in shown
    assert "&lt;script&gt;console.error" in shown
    assert console == []


def test_this_would_notice_what_goes_wrong(place: Path, address: str, tmp_path: Path) -> None:
    page = (place / "report" / "index.html").read_text()
    (place / "broken").mkdir()
    wrong = '<script>console.error("wrong")</script><div style="width: 2000px">wide</div>'
    (place / "broken" / "index.html").write_text(page.replace("<main>", f"<main>{wrong}"))
    (place / "probe-broken.html").write_text(PROBE.format(width=390).replace("report/", "broken/"))
    shown, console = look(f"{address}/probe-broken.html", tmp_path)
    found = re.search(r'<pre id="seen">(.+?)</pre>', shown, re.DOTALL)
    assert found
    seen = json.loads(unescape(found[1]))
    assert seen["scroll"] > 390
    assert seen["outside"]
    assert any("wrong" in line for line in console)
