"""What a recipe may say. One class per table; the tables [threat], [method] and [schedule] are the
fields of the object they name."""

import dataclasses
from functools import cache, partial
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator

from amata.quantity import number
from amata.threat import Ball

Number = Annotated[float, BeforeValidator(number)]
Share = Annotated[float, BeforeValidator(number), Field(ge=0, lt=1)]
Positive = Annotated[float, BeforeValidator(number), Field(gt=0)]
NotNegative = Annotated[float, BeforeValidator(number), Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Data(Table):
    name: str
    """A data set that `amata data` lists."""
    root: str | None = None
    """Where the files are; $AMATA_DATA or ~/.cache/amata by default."""
    batch_size: Count = 128
    """Images in an update, of all processes together."""
    augment: Literal["none", "flip", "crop-flip"] = "none"
    """What is done to training images."""
    pad: int = Field(default=4, ge=0)
    """Black pixels on each side that crop-flip may move an image by."""
    valid: int = Field(default=0, ge=0)
    """How many training images are held out to choose the best model."""
    drop_last: bool = False
    """Whether an epoch's last batch is left out where it is short."""
    workers: int = Field(default=4, ge=0)
    """Processes that decode image folders."""
    resize: Count = 256
    """Of image folders: the length that the shorter side is scaled to."""
    crop: Count = 224
    """Of image folders: the side of the square that is cut out."""
    random_scale: bool = False
    """Of image folders: whether training crops vary in scale and shape."""
    in_memory: bool = False
    """Decode an image folder once, framed centrally, and keep it in memory."""
    test_share: Share = 0.2
    """Held out as test set from a folder that has no val folder."""


class Model(Table):
    name: str
    """A built-in network, `timm/NAME`, or `package.module:callable`, whose in_channels and classes
    or num_classes are filled in."""
    args: dict[str, Any] = {}
    """What else is handed to the network, as {stem = "small"}."""
    mean: list[Number] | None = None
    """Subtracted from each channel, inside the network."""
    std: list[Positive] | None = None
    """What each channel is then divided by."""
    weights: str | None = None
    """Weights to begin from."""
    first_layer: str | None = None
    """The module after which yopo splits the network; the model's own `first_layer` by default."""


class Optim(Table):
    name: Literal["sgd", "adamw", "muon"] = "sgd"
    """The optimiser. muon makes updates of hidden weight matrices and filters orthogonal, and is
    sgd for the rest."""
    lr: Positive = 0.1
    """The learning rate, at its highest."""
    momentum: Share = 0.9
    """Of sgd and muon."""
    nesterov: bool = False
    """Of sgd and muon."""
    weight_decay: NotNegative = 5e-4
    """The pull of weights towards 0: in sgd a part of the gradient, in adamw and muon times the
    rate."""
    decay_all: bool = True
    """Whether weight decay also pulls on biases and BatchNorm; the references do."""
    rate: Literal["constant", "piecewise", "one-cycle", "cosine"] = "constant"
    """How the learning rate goes over the epochs."""
    milestones: list[Number] = []
    """Epochs at which a piecewise rate drops."""
    factor: Positive = 0.1
    """What a piecewise rate is multiplied by at each drop."""
    warmup: NotNegative = 0.0
    """Epochs over which a cosine or piecewise rate rises from 0."""
    peak: Share = 0.4
    """The share of training at which a one-cycle rate is highest."""
    label_smoothing: Share = 0.0
    """The share of a label that is given to all classes evenly."""
    ema: Share = 0.0
    """Decay of the weight average per step; 0 is off."""

    @model_validator(mode="after")
    def _check(self) -> "Optim":
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0")
        return self


class Train(Table):
    epochs: Count = 10
    """Passes over the training images."""
    seed: int = Field(default=0, ge=0)
    """Everything random follows from it."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    engine: Literal["auto", "plain", "fast"] = "auto"
    """auto is fast on a GPU and plain elsewhere."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto is bf16 where the fast engine runs on a GPU, and fp32 elsewhere."""
    deterministic: bool = False
    """Whether only kernels are used that give the same bits every time; slower on a GPU."""
    accumulate: Count = 1
    """Parts in which a batch is trained on before one update, where it does not fit into memory as
    a whole."""
    sync_bn: bool = False
    """Whether BatchNorm sees the whole batch where several processes share it, not each its
    part."""
    attack_mode: Literal["eval", "train"] = "eval"
    """The mode of BatchNorm and dropout during the attack."""
    valid_attack: str = "pgd-10"
    """The cheap attack that chooses the best model on the held-out images."""
    valid_every: Count = 1
    """Epochs between two looks at the held-out images."""
    guard: Literal["rollback", "stop", "ignore"] = "rollback"
    """What to do when training goes wrong, as seen on held-out images: a single-step method
    collapses (catastrophic overfitting), or the network falls back to guessing. rollback goes back
    an epoch and on with one more step, or half the learning rate."""
    keep_epochs: bool = False
    """Whether the state at the start of every epoch is kept, as `amata criterion` needs it."""
    save_minutes: Positive = 5.0
    """Minutes between two checkpoints within an epoch."""
    tensorboard: bool = True
    """Whether TensorBoard events are written."""


class Eval(Table):
    attacks: list[str] = ["clean", "pgd-20"]
    """What the trained model is tested with: clean, fgsm, pgd-K, pgd-K-RESTARTS, cw-pgd-K, cw-l2-K,
    autoattack, each also with @IMAGES."""
    step_size: Positive | None = None
    """Step of the PGD attacks; 2.5 eps / K unless given."""
    cw_c: Positive = 1.0
    """The constant c of cw-l2, which the paper calls eps."""
    precision: Literal["tf32", "fp32"] = "tf32"
    """Whether a GPU may round factors to TF32 in evaluations."""
    batch_size: Count = 256
    """Images that are attacked at once."""
    limit: Count | None = None
    """Test on the first so many images alone."""


class SGD(Optim):
    """Stochastic gradient descent with momentum."""

    name: Literal["sgd"] = "sgd"


class AdamW(Optim):
    """Adam with decoupled weight decay."""

    name: Literal["adamw"] = "adamw"
    lr: Positive = 1e-3
    weight_decay: NotNegative = 0.01


class Muon(Optim):
    """Orthogonal updates for hidden weight matrices and filters, SGD for the rest."""

    name: Literal["muon"] = "muon"
    lr: Positive = 0.02
    weight_decay: NotNegative = 0.01
    nesterov: bool = True


class PythonData(Data):
    """Data that were passed to `amata.fit` in Python, as the run records them."""

    name: Literal["python"] = "python"
    # Keys of data sets on disk are not recorded: nothing used them.
    root: None = Field(default=None, exclude=True)
    workers: int = Field(default=0, exclude=True)
    resize: int = Field(default=0, exclude=True)
    crop: int = Field(default=0, exclude=True)
    random_scale: bool = Field(default=False, exclude=True)
    in_memory: bool = Field(default=True, exclude=True)
    test_share: float = Field(default=0.0, exclude=True)
    count: int | None = None
    """Training images."""
    shape: list[int] | None = None
    """Channels, height and width."""
    classes: int | None = None
    sha256: str | None = None
    """Of pixels and labels; a DataLoader has none, because reading it changes its state."""


class PythonModel(Model):
    """A network that was passed to `amata.fit` in Python, as the run records it."""

    name: Literal["python"] = "python"
    args: dict[str, Any] = Field(default={}, exclude=True)
    class_name: str
    parameters: int


class RecordedTable(BaseModel):
    """A method or schedule of somebody's own class: any keys."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: Literal["python"]


ORDER = ("data", "model", "threat", "method", "schedule", "optim", "train", "eval")
"""The tables of a recipe, in the order in which they are written."""
STATIC: dict[str, type[Table]] = {
    "data": Data,
    "model": Model,
    "optim": Optim,
    "train": Train,
    "eval": Eval,
}


@cache  # pydantic takes its time to make a class
def table_of(cls: type, key: str, name: str) -> type[BaseModel]:
    """The recipe table whose keys are the fields of a dataclass; floats may be written "8/255".
    `key` names the class itself."""
    hints = get_type_hints(cls)
    fields: dict[str, Any] = {key: (Literal[name], ...)}
    for f in dataclasses.fields(cls):
        if hints[f.name] is Ball:
            continue  # it comes from the [threat] table
        kind: Any = hints[f.name]
        if kind in (float, float | None):
            read = Annotated[float, BeforeValidator(partial(number, name=f.name))]
            kind = read if kind is float else read | None
        fields[f.name] = (kind, ... if f.default is dataclasses.MISSING else f.default)
    return create_model(f"{cls.__name__}Table", __base__=Table, **fields)


@cache
def recipe_of(
    threat: type[BaseModel],
    method: type[BaseModel],
    schedule: type[BaseModel],
    data: type[Data],
    model: type[Model],
) -> type[BaseModel]:
    """The whole recipe, with these tables among the static ones."""
    tables: dict[str, Any] = {
        name: (kind, kind()) for name, kind in STATIC.items() if name not in ("data", "model")
    }
    tables |= {"data": (data, ...), "model": (model, ...)}
    tables |= {"threat": (threat, ...), "method": (method, ...), "schedule": (schedule, ...)}
    return create_model("Recipe", __base__=Table, **{name: tables[name] for name in ORDER})
