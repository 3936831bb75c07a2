"""Whether torch.compile pays for a run, and the precision of a device."""

from pathlib import Path
from typing import Any

import pytest
import torch

from amata.ahead import folder
from amata.engine import choose_precision, worth
from amata.engine.worth import Plan, choose, code_for, flops_of, marker_of, seconds_saved
from amata.errors import InputError
from tests.conftest import small_net
from tests.nets import TinyViT


def plan(**changes: Any) -> Plan:
    return Plan("PGD", (3, 8, 8), 50_000, 128, [10] * 30)._replace(**changes)


@pytest.mark.parametrize(
    ("mode", "saved", "compiles"),
    [
        ("always", 0.0, True),
        ("never", 1e9, False),
        ("auto", None, True),  # unknown work
        ("auto", 11.0, True),
        ("auto", 9.0, False),
    ],
)
def test_compiling_has_to_pay(
    mode: Any, saved: float | None, compiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worth, "has_compiler", lambda: True)
    chosen, why = choose(mode, saved, 10.0)
    assert chosen is compiles
    assert bool(why) is not compiles
    monkeypatch.setattr(worth, "has_compiler", lambda: False)
    assert choose(mode, saved, 10.0)[0] is False


def test_a_given_time_decides_and_not_the_epochs() -> None:
    """Some seconds pay for code that is on disk, and a minute and a half for compiling it."""
    for seconds, cold, warm in ((4.0, False, False), (60.0, False, True), (90.0, True, True)):
        for steps in ([1], [10] * 300):
            timed = plan(steps=steps, within=seconds)
            saved = seconds_saved(TinyViT(), timed)
            assert worth.is_worth(saved, worth.seconds_taken(timed)) is cold
            assert worth.is_worth(saved, worth.seconds_taken(timed, on_disk=True)) is warm


def test_every_size_of_images_is_compiled() -> None:
    for on_disk, least in ((False, worth.COLD_SECONDS), (True, worth.WARM_SECONDS)):
        sizes = plan(steps=[1, 1, 1], pixels=[0.25, 1.0, 1.0])
        assert worth.seconds_taken(None, on_disk=on_disk) == least
        assert worth.seconds_taken(plan(), on_disk=on_disk) == least
        assert worth.seconds_taken(sizes, on_disk=on_disk) == 2 * least


def test_more_work_saves_more() -> None:
    model = TinyViT()
    least = seconds_saved(model, plan(steps=[1]))
    assert least is not None
    for larger in (plan(steps=[2]), plan(steps=[1, 1]), plan(steps=[1], images=60_000)):
        saved = seconds_saved(model, larger)
        assert saved is not None
        assert saved > least
    with code_for(3):
        assert seconds_saved(model, plan(steps=[1])) == pytest.approx(3 * least)
    assert seconds_saved(model, plan(steps=[1])) == least
    conv = torch.nn.Conv2d(3, 16, 3, padding=1)
    assert flops_of(conv, (3, 8, 8)) == 2 * 16 * 3 * 9 * 64
    assert flops_of(torch.nn.Bilinear(2, 2, 2), (3,)) is None  # takes two inputs


def test_compiled_code_is_kept_in_the_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/mine")
    monkeypatch.setattr(folder, "_CHOSEN_FOLDER", "/mine")
    assert marker_of(small_net(), plan(), "").parent == Path("/mine/amata")  # type: ignore[union-attr]
    # Inductor wrote its default there: nobody chose it.
    monkeypatch.setattr(folder, "_CHOSEN_FOLDER", None)
    markers = {
        marker_of(model, work, settings)
        for model in (small_net(), TinyViT())
        for work in (plan(), plan(method="TRADES"), plan(batch=64))
        for settings in ("bf16", "fp32")
    }
    assert len(markers) == 12
    assert {m.parent for m in markers if m} == {tmp_path / "amata/compiled/amata"}
    assert marker_of(small_net(), plan(images=3), "") == marker_of(small_net(), plan(), "")


@pytest.mark.parametrize(
    ("precision", "fast_on_gpu", "has_bf16", "chosen"),
    [
        ("auto", True, True, "bf16"),
        ("auto", True, False, "fp32"),
        ("auto", False, True, "fp32"),
        ("fp32", True, True, "fp32"),
        ("bf16", False, True, "bf16"),
    ],
)
def test_bf16_is_used_where_the_device_has_it(
    precision: Any, fast_on_gpu: bool, has_bf16: bool, chosen: str
) -> None:
    assert choose_precision(precision, fast_on_gpu, has_bf16) == chosen
    with pytest.raises(InputError, match=r"this GPU has no bf16; use --set train\.precision=fp32"):
        choose_precision("bf16", fast_on_gpu, False)
