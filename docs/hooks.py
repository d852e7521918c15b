"""For mkdocs: links from the documentation to other files of the repository become plain paths, as the site has none
of these files."""

from __future__ import annotations

import re
from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    return re.sub(r"(?<!!)\[([^\]]+)\]\(\.\./([^)#]+)(#[^)]*)?\)", _plain, markdown)


def _plain(link: re.Match[str]) -> str:
    text, path = link.group(1), link.group(2)
    return text if text.strip("`") == path else f"{text} (`{path}`)"
