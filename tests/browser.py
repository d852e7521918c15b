"""Pages as browsers see them: what they hold, and how they lie in headless Chromium, where it is installed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
CATCH = "<script>window.problems = []; addEventListener('error', (e) => problems.push(String(e.message)));</script>"
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
    *("--virtual-time-budget=20000", "--window-size=1700,1200", "--dump-dom"),
]


class Page(HTMLParser):
    """What a browser would find in a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.strips: list[str] = []
        self.in_code = False
        self.html = path.read_text(encoding="utf-8")
        self.feed(self.html)
        self.text = re.sub(r"\s+", " ", " ".join(self.words))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(key, value or "") for key, value in attrs]
        self.strips += [value or "" for key, value in attrs if key == "data-name"]
        self.in_code = tag in ("style", "script")

    def handle_data(self, data: str) -> None:
        if not self.in_code:
            self.words.append(data)

    def handle_endtag(self, tag: str) -> None:
        self.in_code = False

    def files(self) -> set[str]:
        """Everything the page would load or link to, but its own anchors."""
        found = {unescape(value) for key, value in self.attributes if key in ("src", "href")}
        return {file for file in found if not file.startswith("#") and file != "data:,"}


def in_frames(page: Path, html: str, probe: str, widths: Sequence[int]) -> list[dict[str, Any]]:
    """What a script, put at the end of a page, reports at each width; `window.problems` has the page's errors.

    `page` is its folder; frames have exactly the wanted width, whereas a window may be wider than asked for.
    """
    html = html.replace("<head>", f"<head>{CATCH}", 1).replace("</body>", f"{probe}</body>", 1)
    (page / "probe.html").write_text(html, encoding="utf-8")
    frames = "".join(
        f'<iframe src="{page.name}/probe.html" style="width:{width}px;height:800px;border:0"></iframe>'
        for width in widths
    )
    script = "addEventListener('message', (e) => { const p = document.createElement('pre'); p.textContent ="
    script += " JSON.stringify(e.data); document.body.append(p); });"
    outer = page.parent / "outer.html"
    outer.write_text(f"<!doctype html><body><script>{script}</script>{frames}")
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={page.parent / 'profile'}", outer.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    reports = [json.loads(unescape(text)) for text in re.findall(r"<pre>(.*?)</pre>", done.stdout, re.DOTALL)]
    assert len(reports) == len(widths), done.stderr[-2000:]
    return reports
