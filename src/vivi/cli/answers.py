"""vivi embed, vivi search and vivi select."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from rich.console import Console
from tyro.conf import OmitArgPrefixes, Positional, arg

from vivi.answers.settings import SelectSettings
from vivi.cli.command import Command
from vivi.runtime.console import hint
from vivi.runtime.errors import UserError


@dataclass(frozen=True)
class Embed(Command):
    """Compute an encoder's features of every frame of a corpus, or of images, and keep them in Parquet files. The
    same command goes on after a stop."""

    examples: ClassVar = (
        "vivi embed corpus/ --encoder run/ --out embeddings/",
        "vivi embed images/ --encoder timm:resnet50 --out embeddings/",
    )
    goes_on: ClassVar = True

    footage: Annotated[Positional[Path], arg(metavar="CORPUS|IMAGES")]
    """A corpus of vivi prepare, a folder of images, or a list of them."""
    encoder: str
    """A run or its encoder.safetensors, timm:NAME (pretrained, or with --weights), or untrained:NAME."""
    out: Path = Path("embeddings")
    """Folder for the embeddings."""
    per: Literal["frame", "shot"] = "frame"
    """A vector for each frame; or for each shot, the mean of those of its frames."""
    weights: Path | None = None
    """A file of weights for timm:NAME."""
    size: int = 0
    """Side of the images in pixels; 0: the encoder's own."""
    device: str = "auto"
    """cpu, cuda, ...; auto: a GPU if there is one."""

    def run(self, console: Console) -> dict[str, Any]:
        if not self.footage.exists():
            raise UserError(f"there is no {self.footage}; give a corpus of vivi prepare, or a folder of images")
        from vivi.answers.embed import embed

        embeddings = embed(
            self.footage,
            self.encoder,
            self.out,
            per=self.per,
            weights=self.weights,
            size=self.size,
            device=self.device,
            console=console,
        )
        about = embeddings.about
        console.print(
            f"{len(embeddings):,} embeddings of {about.features:,} numbers, one per {about.per}, in {self.out}",
            soft_wrap=True,
        )
        hint(console, f"search in them: vivi search IMAGE --embeddings {shlex.quote(str(self.out))}")
        return {"embeddings": self.out, "count": len(embeddings), **asdict(about)}


@dataclass(frozen=True)
class Search(Command):
    """Find the shots that are most like some examples."""

    examples: ClassVar = (
        "vivi search photo.jpg --embeddings embeddings/",
        "vivi search clips/a.mp4@12.5 photos/ --not blurred/",
    )

    queries: Annotated[Positional[tuple[str, ...]], arg(metavar="EXAMPLE...")]
    """Images, folders of images, or frames as VIDEO@SECOND, of videos that were embedded."""
    embeddings: Path = Path("embeddings")
    """The embeddings that vivi embed made."""
    unlike: Annotated[tuple[str, ...], arg(name="not", aliases=["--unlike"])] = ()
    """Examples of what is not wanted."""
    count: int = 20
    """How many shots to find."""
    out: Path = Path("found")
    """Folder of the page; open its index.html."""
    device: str = "auto"
    """cpu, cuda, ...; auto: a GPU if there is one."""

    def run(self, console: Console) -> dict[str, Any]:
        if not (self.embeddings / "embeddings.json").is_file():
            raise UserError(f"there are no embeddings in {self.embeddings}; make some with vivi embed")
        from vivi.answers.embeddings import Embeddings
        from vivi.answers.page import Section, open_shown, write_shots_page
        from vivi.answers.search import hit_table, search

        opened = Embeddings(self.embeddings)
        hits = search(opened, self.queries, unlike=self.unlike, count=self.count, device=self.device)
        console.print(hit_table(hits))
        frames = open_shown(opened, self.out)
        shots = [frames.show(hit.row, f"similarity {hit.similarity:.2f}") for hit in hits]
        words = f"The {len(hits)} shots most like {', '.join(self.queries)}"
        words += f", and unlike {', '.join(self.unlike)}" if self.unlike else ""
        intro = (
            f"{words}, of {len(opened):,} embeddings by {opened.about.encoder}. A name opens the file at that second."
        )
        page = write_shots_page(self.out, "vivi search", "Shots found", intro, [Section("", "", shots)])
        console.print(f"open {page}", soft_wrap=True)
        return {"page": page, "shots": [{"similarity": hit.similarity, **asdict(hit.row)} for hit in hits]}


@dataclass(frozen=True)
class Select(Command):
    """Choose the frames that are worth labelling: diverse ones, no near-duplicates, no outliers."""

    examples: ClassVar = (
        "vivi select --embeddings embeddings/ --count 200",
        "vivi select --embeddings embeddings/ --exclude labelled/",
    )

    embeddings: Path = Path("embeddings")
    """The embeddings of every frame that vivi embed made."""
    settings: OmitArgPrefixes[SelectSettings] = field(default_factory=SelectSettings)
    exclude: tuple[str, ...] = ()
    """What is labelled already: images, folders of images, or VIDEO@SECOND."""
    out: Path = Path("selected")
    """Folder for the frames (images/), selected.csv and the page."""
    device: str = "auto"
    """cpu, cuda, ...; auto: a GPU if there is one."""

    def run(self, console: Console) -> dict[str, Any]:
        self.settings.check()
        if not (self.embeddings / "embeddings.json").is_file():
            raise UserError(f"there are no embeddings in {self.embeddings}; make some with vivi embed")
        from vivi.answers.embeddings import Embeddings
        from vivi.answers.select import select, write_selection

        opened = Embeddings(self.embeddings)
        rows = select(opened, self.settings, exclude=self.exclude, device=self.device, console=console)
        page = write_selection(opened, rows, self.settings, self.out)
        videos = len({row.video for row in rows})
        console.print(f"{len(rows):,} frames of {videos:,} videos in {self.out / 'images'}", soft_wrap=True)
        console.print(f"open {page}", soft_wrap=True)
        return {"page": page, "frames": [asdict(row) for row in rows]}
