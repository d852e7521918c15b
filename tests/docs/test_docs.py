"""The documentation: its links lead somewhere, its code runs, and the site can be built."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from runs import OFTEN, command

import vivi
from vivi.recipes import RECIPES
from vivi.train.metrics import read_metrics

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("studies/**/*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub and mkdocs give the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in LINK.findall(page.read_text()):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link}: there is no {target}"
        assert not anchor or anchor in anchors(target), f"{link}: {target.name} has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_source_file_that_a_page_names_exists(page: Path) -> None:
    for name in re.findall(r"`((?:tests|studies|examples|benchmarks)/[\w/]+\.py)`", page.read_text()):
        assert (ROOT / name).exists(), name


def test_the_citation_is_of_this_version_and_of_the_paper_that_the_readme_names() -> None:
    citation, readme = (ROOT / "CITATION.cff").read_text(), (ROOT / "README.md").read_text()
    assert f"version: {vivi.__version__}\n" in citation
    title, *_ = re.findall(r"title += \{(.*)\}", readme)
    authors = re.findall(r"family-names: (\w+)", citation)
    assert f"title: {title}\n" in citation and len(authors) == 8 and all(name in readme for name in authors)


def test_the_code_of_the_python_page_runs(tmp_path: Path, corpus: Path, whole: Path) -> None:
    (tmp_path / "corpus").symlink_to(corpus)
    (tmp_path / "run").symlink_to(whole)
    Image.fromarray(np.zeros((50, 70, 3), np.uint8)).save(tmp_path / "image.jpg")
    code = "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.DOTALL))
    (tmp_path / "page.py").write_text(code + "\nprint(features.shape, loss.item(), metrics, len(videos))\n")
    done = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "my-run" / "encoder.safetensors").exists()


def test_the_loss_of_the_page_on_extending_is_trained_once_it_is_pasted(tmp_path: Path, corpus: Path) -> None:
    package = tmp_path / "src" / "vivi"
    shutil.copytree(ROOT / "src" / "vivi", package, ignore=shutil.ignore_patterns("__pycache__"))
    blocks = re.findall(r"```python\n# (src/\S+)\n(.*?)```", (ROOT / "docs/extend.md").read_text(), re.DOTALL)
    assert [path for path, _ in blocks] == ["src/vivi/losses/fisher.py", "src/vivi/recipes/losses.py"]
    for path, code in (*blocks, ("src/vivi/losses/__init__.py", "from vivi.losses.fisher import Fisher\n")):
        with open(tmp_path / path, "a") as file:
            file.write(code)
    words = command(corpus, tmp_path / "run", "--loss.frame", "fisher", "--loss.frame.dimension", 8, "--steps", 1)
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    done = subprocess.run([*words, *OFTEN], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    logged = read_metrics(tmp_path / "run")[-1]
    λ = RECIPES["vivi-ex4-tiny"].loss.video_weight
    # The monitor measures in this step as well: none of its numbers may have the name of a loss.
    assert logged["loss"] == pytest.approx(logged["fisher"] + λ * logged["infonce"]) and logged["shot_std"] > 0


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    mkdocs = shutil.which("mkdocs", path=str(Path(sys.executable).parent))
    assert mkdocs is not None
    command = [mkdocs, "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "method" / "index.html").exists()
