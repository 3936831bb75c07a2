"""Audits: results, worst case, classes, warnings, the page, and the command."""

import base64
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import amata as amata_package
from amata.console import ConsoleReporter
from amata.data import Arrays
from amata.errors import InputError
from amata.report.gallery import amplification, png
from amata.threat import L2, Linf
from tests.conftest import ROOT, Called, Linear, images, labels, small_net
from tests.test_folders import write_parts
from tests.test_stored import StopAt

BALL = Linf(0.03)
SCRIPT = "<script>alert(1)</script>"


def audited(**more: Any) -> amata_package.Audit:
    model, x = Linear(4), images(60)
    y = model(x).argmax(1)
    y[::10] = (y[::10] + 1) % 4
    given: dict[str, Any] = {"ball": BALL, "attacks": "pgd-1,cw-pgd-3,cw-l2-3", "batch_size": 16}
    return amata_package.audit(model, (x, y), **{**given, **more})


def test_an_image_counts_in_the_worst_case_only_if_it_survives_all_attacks() -> None:
    found = audited()
    assert list(found.results) == ["clean", "pgd-1", "cw-pgd-3", "cw-l2-3"]
    outcomes = [found.results[a].outcomes for a in ("clean", "pgd-1", "cw-pgd-3")]
    expected = [a and b and c for a, b, c in zip(*outcomes, strict=True)]
    assert found.worst.outcomes == expected, "cw-l2 is not bounded by the ball"
    assert found.worst.accuracy == sum(expected) / 60
    assert 0 < found.worst.accuracy < found.results["clean"].accuracy == 0.9
    assert [sum(column) for column in zip(*found.worst.per_class, strict=True)] == [
        sum(expected),
        60,
    ]
    counted = zip("0123", found.worst.per_class, strict=True)
    right, name = min((right / n, name) for name, (right, n) in counted)
    assert f"weakest class: {name}, {right:.1%} in the worst case" in found.remarks
    found.worst.per_class[:] = [(1, 1)] * 4
    assert not any("weakest class" in line for line in found.remarks), "no class is weaker"
    assert list(audited(attacks="pgd-1,clean").results) == ["clean", "pgd-1"], "clean is first"
    limited = audited(attacks="pgd-2,pgd-1@20")
    told = "the worst case is that of the first 20 images, which every attack saw"
    assert sum(w.startswith(told) for w in limited.warnings) == 1
    assert limited.worst.n == 20, "the images that met all attacks"


def test_examples_are_a_mix_and_say_what_the_model_says() -> None:
    found = audited()
    model, x = Linear(4), images(60)
    kinds = [e.survives for e in found.examples]
    assert len(kinds) == 12
    assert sum(kinds) >= 5
    assert sum(not kind for kind in kinds) >= 5
    for e in found.examples:
        assert e.x_adv is not None
        assert np.array_equal(e.x, x[e.index].numpy())
        for pixels, prediction, probability in (
            (e.x, e.clean_prediction, e.clean_probability),
            (e.x_adv, e.prediction, e.probability),
        ):
            p, label = model(torch.from_numpy(pixels)[None]).softmax(1).max(1)
            assert int(label) == prediction
            assert p.item() == pytest.approx(probability, abs=1e-5)
        if e.clean_prediction == e.label:
            assert found.worst.outcomes is not None
            assert e.survives == (e.prediction == e.label)


@pytest.mark.parametrize("source", ["argument", "data", "model", "numbers"])
def test_classes_have_names(source: str) -> None:
    model, x, y = Linear(4), images(20), labels(20)
    names = ("ant", "bee", "cat", "dog")
    data: Any = Arrays(x, y, names=names) if source == "data" else (x, y)
    model.classes = names if source == "model" else 4  # type: ignore[assignment]
    given = names if source == "argument" else None
    found = amata_package.audit(model, data, ball=BALL, attacks="fgsm", classes=given)
    assert found.classes == (("0", "1", "2", "3") if source == "numbers" else names)


def test_what_an_audit_cannot_know_is_a_warning(short_autoattack: None) -> None:
    class Masked(Linear):
        def forward(self, x: Tensor) -> Tensor:
            z: Tensor = super().forward(x).detach()
            return z + 0 * x.flatten(1)[:, :1]

    model, x = Masked(4), images(30)
    y = model(x).argmax(1)
    x, y = x[y == y[0]], y[y == y[0]]
    found = amata_package.audit(model, (x, y), ball=Linf(1e-6))
    text = " | ".join(found.warnings)
    assert "input gradient of exactly zero: gradients look masked" in text
    assert "3 of 4 classes have no image here" in text
    assert all(f"warning: {w}" in str(found) for w in found.warnings)
    assert "probabilities" not in text
    softmax = nn.Sequential(Linear(4), nn.Softmax(1))
    found = amata_package.audit(softmax, (x, y), ball=Linf(1e-6), attacks="fgsm")
    assert any("outputs are probabilities" in warning for warning in found.warnings)


def test_mistakes_are_named() -> None:
    model, x, y = Linear(4), images(8), labels(8)
    mistakes: dict[str, Callable[[], object]] = {
        r"classes = \('a',\) must be 4 names": lambda: audited(classes=("a",)),
        r"an audit needs an attack": lambda: audited(attacks="clean"),
        r"unknown attack 'pdg-3'": lambda: audited(attacks="pdg-3"),
        r"limit = 0": lambda: audited(limit=0),
        r"must be named \.html": lambda: audited().save("audit.pdf"),
        r"is not a threat model": lambda: amata_package.audit(
            model,
            (x, y),
            ball=0.1,  # type: ignore[arg-type]
        ),
    }
    for message, mistake in mistakes.items():
        with pytest.raises(InputError, match=message):
            mistake()


@pytest.mark.parametrize("ball", [BALL, L2(0.2)])
def test_the_page_is_whole_and_escapes_names(tmp_path: Path, ball: Any) -> None:
    names = (SCRIPT, 'a"b', "c&d", "e")
    found = audited(ball=ball, classes=names, name=SCRIPT, attacks="pgd-3")
    text = found.save(tmp_path / "audit.html").read_text()
    assert "<script" not in text
    assert "default-src 'none'" in text
    assert "&lt;script&gt;" in text
    assert re.findall(r'(?:src|href)="(?!data:)', text) == []
    pictures = re.findall(r'src="data:image/png;base64,([^"]+)"', text)
    assert len(pictures) == 3 * len(found.examples)
    first = np.asarray(Image.open(io.BytesIO(base64.b64decode(pictures[0]))))
    assert np.array_equal(first, np.rint(255 * found.examples[0].x[0]))
    for result in (*found.results.values(), found.worst):
        assert f"{100 * result.low:.1f}&nbsp;to&nbsp;{100 * result.high:.1f}" in text
    factor = amplification([(e.x, e.x_adv) for e in found.examples if e.x_adv is not None])
    assert f"× {factor:g}" in text
    assert f"multiplied by {factor:g};" in text
    predicted = [(e.clean_prediction, e.prediction) for e in found.examples]
    wrong = [p != e.label for e, both in zip(found.examples, predicted, strict=True) for p in both]
    assert text.count('class="wrong"') == sum(wrong)
    assert re.findall("<h2>(.*?)</h2>", text) == ["Results", "Images", "Classes", "Environment"]


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_a_png_holds_the_pixels(channels: int) -> None:
    image = np.random.default_rng(0).random((channels, 5, 7)).astype(np.float32)
    found = np.asarray(Image.open(io.BytesIO(png(image))))
    expected = image if channels != 2 else image.mean(0, keepdims=True)
    assert np.array_equal(
        found.reshape(5, 7, -1), np.rint(255 * expected).astype(np.uint8).transpose(1, 2, 0)
    )


@pytest.mark.parametrize(("largest", "factor"), [(8 / 255, 15), (0.2, 2.5), (0.9, 1), (0, 1)])
def test_the_amplification_fits_the_largest_difference(largest: float, factor: float) -> None:
    x = np.zeros((1, 2, 2))
    assert amplification([(x, x + largest)]) == factor


def test_json_holds_outcomes_and_no_pixels() -> None:
    found = audited(attacks="pgd-1")
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["worst"]["accuracy"] == found.worst.accuracy
    assert plain["results"]["pgd-1"]["per_class"] == [
        list(c) for c in found.results["pgd-1"].per_class
    ]
    assert "x_adv" not in plain["examples"][0]


def test_the_model_is_left_unchanged() -> None:
    model = small_net().train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    amata_package.audit(model, (images(12), labels(12)), ball=BALL, attacks="pgd-2-2")
    assert model.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def net(in_channels: int, classes: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(49 * in_channels, classes))


def test_the_command_takes_any_network(amata: Callable[..., Called], tmp_path: Path) -> None:
    call = ["audit", "tests.test_audit:net", "--data", "mnist5k", "--set", "train.device=cpu"]
    short = ["--attacks", "fgsm", "--limit", "40"]
    out = tmp_path / "page"
    done = amata(*call, "--eps", "8/255", *short, "--out", str(out))
    assert done.code == 0, done.err
    assert "tests.test_audit:net, L∞ 8/255" in done.out
    assert "worst case" in done.out
    assert max(map(len, done.out.splitlines()[1:4])) <= 80
    saved = json.loads((out / "audit.json").read_text())
    assert saved["eps"] == 8 / 255
    assert "tests.test_audit:net" in (out / "audit.html").read_text()
    printed = amata(*call, "--eps", "0.5", "--norm", "l2", *short, "--json")
    assert json.loads(printed.out)["norm"] == "l2"
    write_parts(tmp_path / "photos", "")
    own = ["audit", "tests.test_audit:net", "--data", str(tmp_path / "photos")]
    sizes = ["--set", "data.resize=28", "--set", "data.crop=28", "--set", "train.device=cpu"]
    done = amata(*own, *sizes, "--eps", "8/255", "--attacks", "fgsm")
    assert done.code == 0, done.err
    assert "the model gets images of 3 × 28 × 28: data.resize, data.crop" in done.err
    for arguments, message in (
        ((*call, "--eps", "8/255", *short, "--out", str(out)), "exists already"),
        (call, "has no recipe: add --eps"),
        (call[:2], "has no recipe: add --data"),
        (("audit", "timm/resnet18", *call[2:], "--eps", "8/255"), "random weights: add --set"),
        (("audit", "timm/resnet18"), "has no recipe: add --data"),
        (("audit", str(tmp_path / "none")), "no run folder or weights file"),
    ):
        refused = amata(*arguments)
        assert (refused.code, message in refused.err) == (2, True), refused.err


def test_an_interrupted_audit_reports_the_images_that_met_every_attack(
    amata: Callable[..., Called], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = ["audit", "tests.test_audit:net", "--data", "mnist5k", "--set", "train.device=cpu"]
    call += ["--eps", "8/255", "--attacks", "fgsm,pgd-2", "--limit", "600"]
    out = tmp_path / "page"
    stop = StopAt(3, "pgd-2")  # before the attack on the second batch
    monkeypatch.setattr(ConsoleReporter, "evaluating", stop.evaluating)
    stopped = amata(*call, "--out", str(out))
    assert stopped.code == 130
    told = "interrupted after 256 of 600 images"
    assert stopped.err.endswith(f"{told}\n")
    assert f"warning: {told}: the results are of these" in stopped.out
    assert told in (out / "audit.html").read_text()
    saved = json.loads((out / "audit.json").read_text())
    assert [row["n"] for row in (*saved["results"].values(), saved["worst"])] == [256] * 4
    # Before any batch has met all attacks there is nothing to report, and no folder is left.
    monkeypatch.setattr(ConsoleReporter, "evaluating", StopAt(1, "pgd-2").evaluating)
    stopped = amata(*call, "--out", str(tmp_path / "none"))
    assert (stopped.code, stopped.out, stopped.err[-12:]) == (130, "", "interrupted\n")
    assert not (tmp_path / "none").exists()


def test_the_example_of_the_documentation_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "docs" / "audit.md").read_text()
    code = text.partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "audit.md", "exec"), {})
    assert "worst case" in capsys.readouterr().out
    assert ">owl<" in (tmp_path / "audit.html").read_text()
