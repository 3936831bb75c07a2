"""An ONNX file, checked with onnxruntime against the PyTorch model on random images. Its metadata
hold the names of the classes as a JSON list."""

import contextlib
import io
import json
import logging
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from amata.errors import AmataError, missing
from amata.export.card import card, code
from amata.export.trained import Trained, sha256_of
from amata.losses import as_logits
from amata.runs.files import write_atomic, write_json

TOLERANCE = 1e-4
IMAGES = 16


class _Logits(nn.Module):
    """The network with bare logits as output, also where it returns an object with `.logits`."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor) -> Tensor:
        return as_logits(self.net(images))


def write_onnx(trained: Trained, out: Path) -> None:
    try:
        import onnxruntime  # type: ignore[import-untyped]
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise missing(error.name or "onnx", "exporting to ONNX", "onnx") from None
    out.mkdir(parents=True, exist_ok=True)
    file, model = out / "model.onnx", _Logits(trained.model.cpu()).eval()
    x = torch.rand(IMAGES, *trained.shape, generator=torch.Generator().manual_seed(0))
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    # silence the exporter's progress messages and its own deprecations
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model,
            (x[:2],),
            dynamo=True,
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        )
        assert program is not None
        program.model.metadata_props["classes"] = json.dumps(trained.classes)
        program.save(file, external_data=False)
    (found,) = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"]).run(
        None, {"images": x.numpy()}
    )
    with torch.no_grad():
        z = model(x)
    gap = float((torch.from_numpy(found) - z).abs().max())
    if not torch.allclose(torch.from_numpy(found), z, rtol=TOLERANCE, atol=TOLERANCE):
        file.unlink()
        raise AmataError(
            f"the logits of the ONNX file differ from the model's by {gap:.1e}, more than "
            f"{TOLERANCE:g}; the file was removed"
        )
    about = {
        "input": "images: float in [0, 1], (N, C, H, W)",
        "output": "logits",
        "classes": list(trained.classes),
        "shape": list(trained.shape),
        "checked_on": len(x),
        "largest_difference": gap,
    }
    write_json(
        out / "model.json",
        {**about, "recipe": trained.recipe.deciding(), "evaluation": trained.evaluation},
    )
    use = [
        *code(
            "import onnxruntime",
            'model = onnxruntime.InferenceSession("model.onnx")',
            'logits = model.run(None, {"images": images})[0]  # images: float32, NCHW',
        ),
        "",
        f"SHA-256 of model.onnx: `{sha256_of(file)}`. Its logits differ from those of PyTorch by "
        f"at most {gap:.1e} on {len(x)} random images.",
    ]
    write_atomic(out / "README.md", card(trained, use, "onnx").encode())
