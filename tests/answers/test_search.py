"""Search: exactly the nearest shots, from images, folders and frames of videos; a page of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from browser import Page
from conftest import Run
from PIL import Image
from torch.nn import functional as F

from vivi.answers import search as search_module
from vivi.answers.embeddings import Embeddings
from vivi.answers.search import Query, make_query, nearest_shots, search
from vivi.runtime.errors import UserError


def slow_search(
    embeddings: Embeddings, direction: torch.Tensor, own: set[tuple[str, int]]
) -> dict[tuple[str, int], float]:
    """The best similarity of every shot but the query's own, the best first."""
    best: dict[tuple[str, int], float] = {}
    for row in embeddings.rows(range(len(embeddings))):
        value = float(F.cosine_similarity(embeddings.take([row.number])[0].double(), direction.double(), dim=0))
        shot = row.video, row.shot
        if shot not in own:
            best[shot] = max(best.get(shot, -2.0), value)
    return dict(sorted(best.items(), key=lambda item: -item[1]))


@pytest.mark.parametrize("seed", range(4))
def test_the_nearest_shots_are_found_whatever_the_blocks(
    embeddings: Embeddings, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(seed)
    monkeypatch.setattr(search_module, "_BLOCK", int(torch.randint(1, 40, (1,), generator=generator)))
    direction = F.normalize(torch.randn(embeddings.about.features, generator=generator), dim=0)
    expected = slow_search(embeddings, direction, set())
    count = int(torch.randint(1, len(expected) + 5, (1,), generator=generator))
    hits = nearest_shots(embeddings, Query(direction), count, "cpu")
    assert [hit.similarity for hit in hits] == pytest.approx([*expected.values()][:count], abs=1e-5)
    for hit in hits:
        assert hit.similarity == pytest.approx(expected[hit.row.video, hit.row.shot], abs=1e-5)


def test_a_frame_finds_other_shots_and_not_its_own(embeddings: Embeddings) -> None:
    row = embeddings.rows([len(embeddings) // 2])[0]
    for example in (f"{row.video}@{row.time}", f"{row.path}@{row.time + 0.01:.2f}"):
        query = make_query(embeddings, [example], [])
        assert query.own_shots == {(row.video, row.shot)}
        hits = nearest_shots(embeddings, query, 5, "cpu")
        expected = slow_search(embeddings, embeddings.take([row.number])[0].float(), {(row.video, row.shot)})
        assert [hit.similarity for hit in hits] == pytest.approx([*expected.values()][:5], abs=1e-5)


def test_an_image_of_a_frame_finds_that_frame(embeddings: Embeddings, corpus: Path, tmp_path: Path) -> None:
    from vivi.answers.footage import open_footage

    footage = open_footage(corpus)
    image = footage.read(5, [1])[0]
    assert not isinstance(image, str)
    Image.fromarray(image).save(tmp_path / "frame.png")
    hit = search(embeddings, [str(tmp_path / "frame.png")], count=1, device="cpu")[0]
    assert (hit.row.video, hit.row.shot) == footage.video(5) and hit.row.frame == 1
    assert hit.similarity == pytest.approx(1, abs=1e-3)
    (tmp_path / "folder").mkdir()
    for name in ("one.png", "two.png"):
        shutil.copy(tmp_path / "frame.png", tmp_path / "folder" / name)
    assert search(embeddings, [str(tmp_path / "folder")], count=1, device="cpu")[0].row == hit.row


def test_unlike_examples_are_subtracted(embeddings: Embeddings) -> None:
    first, second = embeddings.rows([0, len(embeddings) - 1])
    words = [f"{row.video}@{row.time}" for row in (first, second)]
    query = make_query(embeddings, words[:1], words[1:])
    a, b = (F.normalize(embeddings.take([row.number])[0].float(), dim=0) for row in (first, second))
    torch.testing.assert_close(query.direction, F.normalize(a - b, dim=0))


def test_other_weights_of_the_same_name_are_refused(embeddings: Embeddings, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(embeddings.folder, folder)
    about = json.loads((folder / "embeddings.json").read_text())
    (folder / "embeddings.json").write_text(json.dumps({**about, "checksum": "other"}))
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "a.png")
    with pytest.raises(UserError, match="other weights than when"):
        search(folder, [str(tmp_path / "a.png")])


@pytest.mark.parametrize(
    ("example", "line"),
    [
        ("nothing.jpg", "nothing.jpg does not exist; give an image"),
        ("v99.mp4@1", "has no video v99.mp4; name it as in the column 'video'"),
        (__file__, "is no image; give an image"),
    ],
)
def test_a_wrong_example_is_one_line(embeddings: Embeddings, example: str, line: str) -> None:
    with pytest.raises(UserError) as caught:
        search(embeddings, [example])
    assert line in str(caught.value) and "\n" not in str(caught.value)


def test_the_command_prints_shots_and_makes_a_page(embeddings: Embeddings, tmp_path: Path, vivi: Run) -> None:
    row = embeddings.rows([3])[0]
    words = ["search", f"{row.video}@{row.time}", "--embeddings", embeddings.folder, "--count", 4, "--device", "cpu"]
    done = vivi(*words, "--out", tmp_path / "page")
    assert done.returncode == 0, done.stderr
    page = Page(tmp_path / "page" / "index.html")
    hits = search(embeddings, [f"{row.video}@{row.time}"], count=4, device="cpu")
    assert page.strips == [hit.row.video for hit in hits]
    files = [file for file in page.files() if not file.startswith("file://")]
    assert files and all((tmp_path / "page" / file).is_file() for file in files)
    links = {value for key, value in page.attributes if key == "href" and value.startswith("file://")}
    assert links == {f"file://{hit.row.path}" + (f"#t={hit.row.time:.2f}" if hit.row.time else "") for hit in hits}
    printed = vivi(*words, "--json")
    assert [hit["video"] for hit in json.loads(printed.stdout)["shots"]] == [hit.row.video for hit in hits]
