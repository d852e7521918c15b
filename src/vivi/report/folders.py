"""What our pages share: their shell, and the rules of the folders they lie in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vivi.runtime.errors import UserError
from vivi.runtime.storage import StorageError


def document(
    command: str, kind: str, name: str, style: str, header: str, sections: Sequence[Section], after: str
) -> str:
    """A whole page, from HTML: `header` stands above the links to the sections, `after` is for scripts."""
    links = "".join(f'<a href="#{section.key}">{section.label}</a>' for section in sections)
    body = "".join(
        f'<section id="{section.key}" aria-labelledby="{section.key}-title">'
        f'<h2 id="{section.key}-title">{section.heading}</h2>{section.content}</section>'
        for section in sections
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{generator(command)}
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{name} · {kind}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<header>
<p class="eyebrow">{kind}</p>
{header}
<nav aria-label="Sections">{links}</nav>
</header>
<main>
{body}
</main>
<footer>Made by <code>{command}</code>. Nothing on this page is loaded from the network.</footer>
{after}
</body>
</html>
"""


@dataclass(frozen=True)
class Section:
    """A part of a page: its anchor, its name in the navigation, its heading, its content; all but the first HTML."""

    key: str
    label: str
    heading: str
    content: str


def check_free(out: Path, command: str) -> Path:
    """The index.html of a page; raises before any work where it would replace what the command did not make."""
    index = out / "index.html"
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; give --out a folder")
    if index.exists():
        with open(index, "rb") as file:
            if generator(command).encode() not in file.read(2000):
                raise UserError(f"{index} was not made by {command}; give --out another folder")
    return index


def generator(command: str) -> str:
    """What tells a page's maker, in its head."""
    return f'<meta name="generator" content="{command}">'


@contextmanager
def unwritable_named(out: Path) -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        raise UserError(f"the page cannot be written: {error}") from None
    except OSError as error:
        raise UserError(f"{out}: {error.strerror or error}; give --out a folder that can be written") from None
