"""Landscapes: axes and losses against independent computations, and the command."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from matplotlib.text import Text

from amata import recipes
from amata.attacks import pgd
from amata.errors import InputError
from amata.report.landscape import epoch_figures, landscape_figure, loss_scale
from amata.runs.files import under
from amata.schedules import Control, largest_control
from amata.studies.landscape import Pictured, landscape, pgd_path, steepest_image
from amata.studies.plane import Plane, principal_direction, rademacher_direction
from amata.tensors import read_tensors
from amata.threat import L2, Ball, Linf
from amata.training.experiment import train
from amata.training.loaded import load_trained
from tests.conftest import images, labels, small_net
from tests.test_compare import QUICK

BALL = Linf(0.1)


def test_the_path_is_pgds() -> None:
    model, x, y = small_net().eval(), images(1), labels(1)
    points = pgd_path(model, x, y, BALL, Control(6, 0.03))
    assert torch.equal(points[:1], x)
    for k in range(1, 7):
        assert torch.equal(
            points[k : k + 1],
            pgd(model, x, y, ball=BALL, steps=k, step_size=0.03, random_start=False),
        )


def test_the_x_axis_is_the_first_principal_component() -> None:
    model, x, y = small_net().eval(), images(1), labels(1)
    points = pgd_path(model, x, y, BALL, Control(12, 0.02))
    found = principal_direction(points, x).flatten().numpy()
    vectors = (points - x).flatten(1).numpy().astype(np.float64)
    values, directions = np.linalg.eigh(np.cov(vectors.T))
    expected = directions[:, np.argmax(values)]
    assert abs(found @ expected) == pytest.approx(1, abs=1e-5)
    assert vectors[-1] @ found > 0
    along = torch.from_numpy(found).view(x.shape)
    across = rademacher_direction(x, along, 3)
    assert float((along * across).sum()) == pytest.approx(0, abs=1e-6)
    assert float(across.norm()) == pytest.approx(1, abs=1e-6)
    signs = across.sign()  # up to a multiple of X, all entries have the same magnitude
    assert float((signs * across).sum()) > 0.9 * across.numel() ** 0.5
    with pytest.raises(InputError, match="does not move"):
        principal_direction(x.repeat(3, 1, 1, 1), x)


def test_grid_values_are_losses_on_the_plane() -> None:
    model, x, y = small_net(), images(1), labels(1)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    controls = {"strong": Control(8, 0.02), "weak": Control(2, 0.05)}
    found, images_ = landscape(model, x, y, ball=BALL, controls=controls, size=7, seed=1)
    assert model.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    model.eval()
    points = pgd_path(model, x, y, BALL, controls["strong"])
    along = principal_direction(points, x)
    across = rademacher_direction(x, along, 1)
    for row, b in enumerate(found["y"]):
        for column, a in enumerate(found["x"]):
            with torch.no_grad():
                expected = F.cross_entropy(model(x + a * along + b * across), y)
            assert found["loss"][row][column] == pytest.approx(float(expected), rel=1e-3, abs=1e-5)
    with torch.no_grad():
        clean = float(F.cross_entropy(model(x), y))
        plane = Plane(x, along, across)
        assert float(F.cross_entropy(model(plane.at(torch.zeros(1, 2))), y)) == pytest.approx(
            clean, abs=1e-6
        )
    assert found["clean_loss"] == pytest.approx(clean, abs=1e-6)
    assert np.allclose(images_.clean, x[0].permute(1, 2, 0) if x.shape[1] == 3 else x[0, 0])
    assert abs(images_.adversarial - images_.clean).max() == pytest.approx(BALL.eps, abs=1e-6)
    for key, at in (("clean", x), ("adversarial", points[-1:])):
        with torch.no_grad():
            p = model(at).softmax(1)[0]
        assert found[key]["class"] == int(p.argmax())
        assert found[key]["probability"] == pytest.approx(float(p.max()), abs=1e-3)
    strong, weak = found["courses"]
    assert (strong["steps"], weak["steps"]) == (8, 2)
    assert strong["points"][0] == [0, 0]
    assert len(strong["points"]) == len(strong["loss"]) == 9
    assert torch.allclose(
        plane.coordinates(plane.at(torch.tensor([[0.3, -0.2]]))),
        torch.tensor([[0.3, -0.2]]),
        atol=1e-6,
    )


def test_the_default_sample_is_the_image_whose_loss_rises_most() -> None:
    model, x, y, u = small_net().eval(), images(12), labels(12), Control(3, 0.04)
    ends = torch.cat([pgd_path(model, x[i : i + 1], y[i : i + 1], BALL, u)[-1:] for i in range(12)])
    rises = F.cross_entropy(model(ends), y, reduction="none") - F.cross_entropy(
        model(x), y, reduction="none"
    )
    assert steepest_image(model, x, y, BALL, u) == int(rises.argmax()) != 0


@pytest.mark.parametrize("ball", [Linf(0.1), L2(0.7)])
def test_the_edge_of_the_ball_is_where_the_plane_leaves_it(ball: Ball) -> None:
    x = images(1)
    along = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    along /= along.norm()
    plane = Plane(x, along, rademacher_direction(x, along, 2))
    edge = plane.edge(ball)
    on_edge = plane.at(edge)
    assert torch.allclose(
        ball.distance(on_edge, x.expand_as(on_edge)), torch.tensor(ball.eps), atol=1e-5
    )
    assert edge[0].tolist() == pytest.approx([plane.units(ball)[0], 0], abs=1e-5)
    assert edge[45].tolist() == pytest.approx([0, plane.units(ball)[1]], abs=1e-4)
    if ball.norm == "l2":
        assert torch.allclose(edge.norm(dim=1), torch.tensor(ball.eps), atol=1e-5)
        assert torch.allclose(plane.shadow(ball), edge, atol=1e-4)
    # any point of the ball is projected into its shadow: compare in many directions
    inside = x + ball.limit(3 * ball.eps * torch.randn(200, *x.shape[1:]))
    angles = torch.linspace(0, 6.28, 50)
    normals = torch.stack([angles.cos(), angles.sin()])
    reach = (plane.shadow(ball) @ normals).amax(0)
    assert ((plane.coordinates(inside) @ normals).amax(0) <= reach + 1e-3 * ball.eps).all()


def drawn_result(model: torch.nn.Module, epochs: int) -> tuple[dict[str, Any], list[Any]]:
    """Landscapes of one image at several scales of the loss, as `run_landscapes` returns them."""
    controls = {"PGD-20": Control(20, 0.01), "training attack, K = 2": Control(2, 0.05)}
    found = [
        landscape(model, images(1), labels(1), ball=BALL, controls=controls, size=5)
        for _ in range(epochs)
    ]
    for index, (picture, _) in enumerate(found):
        picture["loss"] = [[v * 10.0**-index for v in row] for row in picture["loss"]]
        for key in ("clean", "adversarial"):
            picture[key]["name"] = f"class {picture[key]['class']}"
    result = {"recipe": "mine", "image": 3, "label": 1, "label_name": "cat", "run": "r"}
    pictures = [{"epoch": i + 1, **picture} for i, (picture, _) in enumerate(found)]
    return {**result, "landscapes": pictures}, [images_ for _, images_ in found]


def test_one_colour_scale_over_all_epochs() -> None:
    pictures = [{"loss": [[0.5, 2.0]]}, {"loss": [[0.9, 4.0]]}]
    levels, norm = loss_scale({"landscapes": pictures})
    assert (levels[0], levels[-1], norm.vmin, norm.vmax) == pytest.approx((0.5, 4.0, 0.5, 4.0))
    assert levels[1] - levels[0] == pytest.approx(levels[-1] - levels[-2])
    levels, norm = loss_scale({"landscapes": [*pictures, {"loss": [[0.0, 1e-5]]}]})
    assert (norm.vmin, norm.vmax) == pytest.approx((4e-4, 4.0))
    assert levels[1] / levels[0] == pytest.approx(levels[-1] / levels[-2])


def test_a_landscape_shows_its_image_and_labels_and_no_legend_over_its_axes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    texts: list[str] = []
    wide: list[bool] = []

    def check(figure: Any) -> bytes:
        wide.append(figure.get_figwidth() > 2 * figure.get_figheight())
        figure.draw_without_rendering()
        (legend,) = figure.legends
        box = legend.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.width
        shown = [ax for ax in figure.axes if ax.axison]
        for ax in shown:
            assert ax.get_legend() is None
            assert not box.overlaps(ax.get_window_extent())
        strips = [ax.child_axes for ax in figure.axes if ax.child_axes]
        assert [[len(part.images) for part in strip] for strip in strips] == [[1] * 3] * len(strips)
        texts.extend(t.get_text() for t in figure.findobj(Text))
        return b"<svg/>"

    monkeypatch.setattr("amata.report.figures.to_svg", check)
    result, shown = drawn_result(small_net().eval(), 2)
    colours = shown[0].clean.repeat(3).reshape(*shown[0].clean.shape[:2], -1)[..., :3]
    shown[1] = Pictured(colours, colours - BALL.eps * (1 + 1e-6))  # rounding errors happen
    landscape_figure(result, shown, tmp_path / "landscape")
    assert "Clipping" not in caplog.text
    for words in (
        "mine, test image 3, true label cat",
        "principal direction (× eps; eps = 0.1)",
        "ball in the plane",
        "clean image (start)",
        "training attack",
        "epoch 2",
    ):
        assert words in texts
    assert any(t.startswith("class ") for t in texts)
    assert len(epoch_figures(result, shown)) == 2
    assert not any(wide)
    single = {**result, "landscapes": result["landscapes"][:1]}
    (one,) = epoch_figures(single, shown)
    assert one.title == "epoch 1"
    landscape_figure(single, shown, tmp_path / "single")
    assert wide[-2:] == [True, True]


@pytest.mark.slow
def test_the_command_draws_saved_epochs(
    tmp_path: Path, amata: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    train(
        recipes.load(
            "mnist5k-amata",
            [*QUICK, "train.epochs=2", "train.keep_epochs=true", "eval.limit=10", "optim.ema=0.9"],
        ),
        run,
    )
    called = amata(
        "landscape",
        run,
        "--epochs",
        "1,2",
        "--steps",
        "5,2",
        "--grid",
        "9",
        "--out",
        tmp_path / "l",
    )
    assert called.code == 0, called.err
    result = json.loads((tmp_path / "l" / "landscape.json").read_text())
    assert [p["epoch"] for p in result["landscapes"]] == [1, 2]
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [p["courses"][2]["steps"] for p in result["landscapes"]] == [r["steps"] for r in rows]
    model, recipe, splits = load_trained(run)
    largest = largest_control(recipe.schedule, 2)
    reach = largest.steps * largest.step_size
    for course in result["landscapes"][0]["courses"][:2]:  # of the run's own reach
        assert course["steps"] * course["step_size"] == pytest.approx(reach)
    model.load_state_dict(under(read_tensors(run / "epochs" / "00002.safetensors"), "ema/"))
    x, y = next(
        iter(splits.test.read([torch.tensor([result["image"]])], torch.device("cpu"), None))
    )
    with torch.no_grad():
        clean = float(F.cross_entropy(model(x), y))
    assert result["landscapes"][1]["clean_loss"] == pytest.approx(clean, rel=1e-4)
    for name in ("landscape.svg", "landscape.png", "landscape-3d.svg", "landscape-3d.png"):
        assert (tmp_path / "l" / name).stat().st_size > 1000
    monkeypatch.setattr("amata.studies.landscape.steepest_image", lambda *_: 3)
    assert (
        "test image 3, label"
        in amata("landscape", run, "--grid", "3", "--steps", "2", "--out", tmp_path / "c").out
    )
    assert f"test image {result['image']}, label {result['label_name']}" in called.out
    assert (
        amata(
            "landscape",
            run,
            "--grid",
            "5",
            "--steps",
            "3",
            "--image",
            "7",
            "--alpha",
            "0.05",
            "--set",
            "threat.eps=0.15",
            "--out",
            tmp_path / "b",
        ).code
        == 0
    )
    other = json.loads((tmp_path / "b" / "landscape.json").read_text())
    assert other["image"] == 7
    assert other["landscapes"][0]["eps"] == 0.15
    assert {c["step_size"] for c in other["landscapes"][0]["courses"]} == {0.05}
    assert (
        "not one of the run's 2 epochs"
        in amata("landscape", run, "--epochs", "3", "--out", tmp_path / "x").err
    )
    assert (
        "not one of the 1000 test images"
        in amata("landscape", run, "--image", "1000", "--out", tmp_path / "x").err
    )
