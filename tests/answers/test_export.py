"""vivi export: a folder that somebody without vivi loads, with a card that says how, and whence it comes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from runs import vivi_here
from safetensors.torch import load_file
from some_results import a_result
from torch import nn

import vivi
from vivi import recipes
from vivi.answers import export as exporting
from vivi.answers.export_formats import load_exported, write_model
from vivi.answers.settings import TEST_VECTOR, Format
from vivi.evaluate.encoders import Model, load_model
from vivi.evaluate.results import write_result
from vivi.model.architecture import Architecture
from vivi.model.encoder import build_encoder
from vivi.model.files import write_encoder
from vivi.runtime.errors import UserError

onnx = pytest.importorskip("onnx", reason="the extra 'export' is not installed")
onnxruntime = pytest.importorskip("onnxruntime")


@dataclass(frozen=True)
class Exported:
    """A folder that was exported, and what was printed."""

    folder: Path
    printed: str

    @property
    def card(self) -> str:
        return (self.folder / "README.md").read_text()

    @property
    def code(self) -> str:
        return "\n".join(re.findall(r"```python\n(.*?)```", self.card, re.DOTALL))


def export(run: Path, to: str, out: Path, *flags: object) -> Exported:
    return Exported(out, vivi_here("export", run, "--to", to, "--out", out, *flags))


SMALL = recipes.Encoder("resnetv2_18", width=0.125)
GROUPS = recipes.Encoder("resnetv2_18", width=0.25, norm="group")


def an_encoder(folder: Path, settings: recipes.Encoder = SMALL, size: int = 32, patches: bool = False) -> Path:
    """A run that was cut short: an encoder of random weights, and nothing else."""
    torch.manual_seed(0)
    folder.mkdir()
    encoder = build_encoder(settings, size, patches)
    for module in encoder.backbone.modules():  # else an untrained residual network barely uses its blocks
        if isinstance(module, nn.BatchNorm2d | nn.GroupNorm):
            nn.init.uniform_(module.weight, 0.5, 1.5)
    write_encoder(folder, encoder, "mine", 3)
    return folder


def refusal(*words: object) -> str:
    with pytest.raises(UserError) as caught:
        vivi_here("export", *words)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(scope="module")
def exports(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Exported]:
    """A real run, in every format."""
    folder = tmp_path_factory.mktemp("exports")
    return {
        "timm": export(whole, "timm", folder / "timm"),
        "hf": export(whole, "hf", folder / "hf", "--license", "cc-by-4.0", "--name", "birds <b>_1"),
        "torchscript": export(whole, "torchscript", folder / "torchscript"),
        "onnx": export(whole, "onnx", folder / "onnx", "--normalise-inside"),
    }


# --- who gets the folder has no vivi ---

HUB = """
hub = timm.create_model("hf-hub:me/birds", pretrained=True).eval()
assert torch.equal(hub(vector["images"]), model(vector["images"]))
tuned = timm.create_model("local-dir:.", pretrained=True, num_classes=10)
assert tuned(vector["images"]).shape == (3, 10)
"""


@pytest.mark.parametrize(
    ("to", "missing", "more"),
    [("hf", ("vivi",), "import torch" + HUB), ("torchscript", ("vivi", "timm"), ""), ("onnx", ("vivi", "torch"), "")],
)
def test_the_code_of_the_card_runs_where_vivi_is_not(
    exports: dict[str, Exported], whole: Path, tmp_path: Path, to: str, missing: tuple[str, ...], more: str
) -> None:
    cache = tmp_path / "cache" / "models--me--birds"  # what the hub gives, as it lies on the disk afterwards
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("1")
    shutil.copytree(exports[to].folder, cache / "snapshots" / "1")
    here = shutil.copytree(exports[to].folder, tmp_path / "given")
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)).resize((90, 60))
    image.save(here / "image.jpg", quality=95)
    blocked = f"import sys; sys.modules.update(dict.fromkeys({missing!r}))\n"
    saved = "\nimport json; json.dump([float(value) for value in features[0]], open('features.json', 'w'))\n"
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-I", "-c", blocked + exports[to].code + more + saved]
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    encoder, transform = vivi.load_encoder(whole)
    with torch.no_grad():
        ours = encoder(transform(Image.open(here / "image.jpg"))[None])[0]
    theirs = torch.tensor(json.loads((here / "features.json").read_text()))
    # Not the same resizing to the last bit: theirs has rounded to 8 bits before, ours has not.
    assert (ours - theirs).abs().max() < 0.02 * ours.abs().max()


def test_the_check_of_the_card_fails_on_other_weights(exports: dict[str, Exported], tmp_path: Path) -> None:
    folder = shutil.copytree(exports["onnx"].folder, tmp_path / "given")
    model = onnx.load(folder / "model.onnx")
    largest = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    largest.raw_data = (np.frombuffer(largest.raw_data, np.float32) * 1.1).astype(np.float32).tobytes()
    onnx.save(model, folder / "model.onnx")
    code = "import onnxruntime\nmodel = onnxruntime.InferenceSession('model.onnx')\n"
    code += exports["onnx"].code[exports["onnx"].code.index("from safetensors") :]
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 1 and "AssertionError" in done.stderr


def test_timms_files_say_what_the_input_is(exports: dict[str, Exported]) -> None:
    config = json.loads((exports["timm"].folder / "config.json").read_text())
    assert config["architecture"] == "resnetv2_18" and config["model_args"] == {"width_factor": 0.125}
    about = config["pretrained_cfg"]
    assert about["input_size"] == [3, 32, 32] and about["mean"] == about["std"] == [0.5] * 3
    files = {path.name for path in exports["timm"].folder.iterdir()}
    assert files == {"README.md", "check", "config.json", "model.safetensors"}
    # Older timm cannot load a folder with two files of this kind.
    assert [path.name for path in exports["timm"].folder.glob("*.safetensors")] == ["model.safetensors"]


def test_onnx_takes_any_number_of_8_bit_images(exports: dict[str, Exported], whole: Path) -> None:
    session = onnxruntime.InferenceSession(exports["onnx"].folder / "model.onnx")
    [given] = session.get_inputs()
    assert given.type == "tensor(uint8)" and given.shape[1:] == [3, 32, 32] and isinstance(given.shape[0], str)
    encoder, _ = vivi.load_encoder(whole)
    for count in (1, 2, 7):
        pixels = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8)
        with torch.no_grad():
            wanted = encoder(pixels / 127.5 - 1).numpy()
        [found] = session.run(None, {"images": pixels.numpy()})
        assert np.abs(found - wanted).max() < 1e-4 * np.abs(wanted).max()


# --- every kind of encoder ---


@pytest.mark.parametrize(
    ("to", "settings", "size", "patches"),
    [
        ("onnx", GROUPS, 32, False),
        ("torchscript", GROUPS, 32, False),
        ("torchscript", SMALL, 32, True),
        ("timm", recipes.Encoder("resnetv2_18", width=1.25), 48, False),
        ("timm", recipes.Encoder("vit_tiny_patch16_224"), 32, False),
    ],
)
def test_encoders_of_all_kinds_give_the_same_features(
    to: Format, settings: recipes.Encoder, size: int, patches: bool, tmp_path: Path
) -> None:
    run = an_encoder(tmp_path / "run", settings, size, patches)
    encoder, _ = vivi.load_encoder(run)
    folder = export(run / "encoder.safetensors", to, tmp_path / "out").folder
    vector = load_file(folder / TEST_VECTOR)
    with torch.no_grad():
        assert torch.equal(encoder(vector["images"]), vector["features"])
        found = load_exported(folder, to)(vector["images"])
    assert (found - vector["features"]).abs().max() < 1e-4 * vector["features"].abs().max()
    if to == "onnx":  # runtimes want kernels that are constant
        graph = onnx.load(folder / "model.onnx").graph
        constant = {tensor.name for tensor in graph.initializer}
        assert all(node.input[1] in constant for node in graph.node if node.op_type == "Conv")


@pytest.mark.parametrize(
    ("settings", "patches", "said"),
    [(GROUPS, False, "of the group norm"), (SMALL, True, "of the strides for patches")],
)
def test_what_timm_cannot_be_told_is_refused(
    settings: recipes.Encoder, patches: bool, said: str, tmp_path: Path
) -> None:
    run = an_encoder(tmp_path / "run", settings, patches=patches)
    for to in ("timm", "hf"):
        line = refusal(run, "--to", to, "--out", tmp_path / "out")
        assert said in line and line.endswith("give --to torchscript or onnx")
    assert not (tmp_path / "out").exists()


def test_zeros_before_a_max_pool_stay_zeros_in_onnxruntime(tmp_path: Path) -> None:
    stem = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ConstantPad2d(1, 0.0), nn.MaxPool2d(3, 2), nn.Flatten()).eval()
    images = -torch.rand(2, 3, 11, 11)
    nn.init.uniform_(stem.get_parameter("0.weight"), 0.5, 1)  # so that a zero is the largest
    architecture = Architecture("stem", {}, 11)
    model = Model("stem", "stem", stem, 4, 11, (0.5,) * 3, (0.5,) * 3, (), "", architecture)
    write_model(model, "onnx", False, images, tmp_path)
    with torch.no_grad():
        assert torch.allclose(load_exported(tmp_path, "onnx")(images), stem(images), atol=1e-5)


# --- the card ---


def test_the_card_says_what_the_encoder_learned_from_and_how(exports: dict[str, Exported], whole: Path) -> None:
    card = exports["hf"].card
    assert card.startswith("---\nlibrary_name: timm\npipeline_tag: image-feature-extraction\nlicense: cc-by-4.0\n")
    assert "# birds \\<b\\>\\_1\n" in card
    assert re.search(r"- videos: the corpus “corpus”, \d+ videos of \d+ s together, \d+ shots\n", card)
    assert "VIVI's recipe vivi-ex4-tiny, 30 steps." in card
    assert "| encoder.width | 0.125 | 0.25 |" in card and "| loss.frame | exemplar |  |" in card
    last = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()][-1]
    assert f"| loss | {last['loss']:.4g} | 30 |" in card and "seconds" not in card
    assert card.rstrip().endswith("## License\n\ncc-by-4.0")


def test_the_card_names_no_place_on_this_machine(exports: dict[str, Exported], whole: Path) -> None:
    for exported in exports.values():
        for path in exported.folder.rglob("*"):
            assert path.is_dir() or str(whole.parent.parent).encode() not in path.read_bytes()


def test_metrics_after_the_step_of_the_encoder_are_left_out(whole: Path, tmp_path: Path) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 31, "loss": 123.5}\n')
    assert "123.5" not in export(run, "timm", tmp_path / "out").card


def test_results_of_these_weights_are_on_the_card(whole: Path, tmp_path: Path) -> None:
    results, model = tmp_path / "results", load_model(str(whole))
    write_result(results, a_result("other", "dtd", [0.9], encoder_checksum="other"))
    arguments = (whole, "--to", "timm", "--out", tmp_path / "out", "--results", results)
    assert "has no result of these weights: measure them first" in refusal(*arguments)
    images = {"final": 1000, "test": 1880}
    write_result(results, a_result("mine", "dtd", [0.4, 0.416, 0.5], encoder_checksum=model.checksum, images=images))
    (results / "torn.json").write_text("{")
    exported = export(whole, "timm", tmp_path / "out", "--results", results)
    assert "| vtab (v1) | DTD | 41.6 % (median of 3 seeds) | 1,000 final, 1,880 test |" in exported.card
    assert "90.0 %" not in exported.card and "torn.json is no result" in exported.printed


def test_what_the_card_lacks_is_said(tmp_path: Path, whole: Path) -> None:
    exported = export(an_encoder(tmp_path / "run"), "timm", tmp_path / "out")
    assert "does not say what the encoder learned from" in exported.printed
    assert "names no license" in exported.printed and "What it learned from is not known." in exported.card
    run = shutil.copytree(whole, tmp_path / "moved")
    about = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**about, "corpus_fingerprint": "of another"}))
    exported = export(run, "timm", tmp_path / "second")
    assert "does not say how much video it saw" in exported.printed
    assert "- videos: the corpus “corpus”\n" in exported.card


# --- where it goes wrong ---


def test_an_earlier_export_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    run, out = an_encoder(tmp_path / "run"), tmp_path / "out"
    export(run, "timm", out)
    export(run, "torchscript", out)
    assert {path.name for path in out.iterdir()} == {"README.md", "check", "model.pt"}
    (out / "check" / "mine.txt").touch()
    assert "out holds something else (check/mine.txt); choose a new" in refusal(run, "--to", "timm", "--out", out)
    others = tmp_path / "others"
    others.mkdir()
    (others / "README.md").write_text("somebody's own")
    assert "others holds something else (README.md)" in refusal(run, "--to", "timm", "--out", others)
    assert "Not a directory" in refusal(run, "--to", "timm", "--out", others / "README.md")
    assert (others / "README.md").read_text() == "somebody's own"


def test_an_export_that_gives_other_features_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = an_encoder(tmp_path / "run"), tmp_path / "out"
    export(run, "timm", out)
    before = (out / "README.md").stat().st_ino
    loaded = exporting.load_exported
    monkeypatch.setattr(exporting, "load_exported", lambda *given: lambda images: 1.01 * loaded(*given)(images))
    assert "as torchscript, " in refusal(run, "--to", "torchscript", "--out", out)
    monkeypatch.setattr(exporting, "load_exported", lambda *given: lambda images: loaded(*given)(images) * torch.nan)
    assert "they differ by nan" in refusal(run, "--to", "torchscript", "--out", out)
    assert (out / "README.md").stat().st_ino == before and (out / "model.safetensors").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"run", "out"}


# Many command lines in one process, each answered before torch is imported; --to onnx lacks a package.
WRONG = """
import json, sys
from vivi.cli import main
sys.modules["onnxruntime"] = None
for words in json.loads(sys.argv[1]):
    sys.argv = ["vivi", *words]
    try:
        main()
    except SystemExit as end:
        assert end.code
    assert "torch" not in sys.modules, words
"""


def test_wrong_words_are_answered_in_one_line_before_torch_is_imported(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    cases: dict[tuple[object, ...], str] = {
        (tmp_path / "nothing", "timm"): "there is no run or file",
        (run, "onnx"): "--to onnx needs onnxruntime: pip install 'vivi-video[export]'",
        (run, "timm", "--normalise-inside"): "--normalise-inside goes with --to torchscript and onnx",
        (run, "hf", "--license", "Apache 2.0"): "write it like apache-2.0",
        (run, "hf", "--results", tmp_path / "none"): "there is no folder",
        ("untrained:resnet18", "timm"): "untrained:resnet18 has learned nothing",
        (run, "zip"): "--to is 'zip'; it must be one of 'timm'",
    }
    words = [
        [str(word) for word in ("export", source, "--to", to, "--out", tmp_path / "out", *flags)]
        for source, to, *flags in cases
    ]
    done = subprocess.run([sys.executable, "-c", WRONG, json.dumps(words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for line, said in zip(done.stderr.splitlines(), cases.values(), strict=True):
        assert line.startswith("error: ") and said in line
