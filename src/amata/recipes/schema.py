"""What a recipe may say. One class per table; the tables [threat], [method] and [schedule] are the fields of the object they name."""

import dataclasses
from functools import partial
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator

from amata.quantity import number
from amata.threat import Ball

Number = Annotated[float, BeforeValidator(number)]
Share = Annotated[float, BeforeValidator(number), Field(ge=0, lt=1)]
Positive = Annotated[float, BeforeValidator(number), Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Data(Table):
    name: str
    root: str | None = None
    """Where the files are; $AMATA_DATA or ~/.cache/amata by default."""
    batch_size: Count = 128
    augment: Literal["none", "flip", "crop-flip"] = "none"
    pad: int = Field(4, ge=0)
    valid: int = Field(0, ge=0)
    """How many training images are held out to choose the best model."""
    drop_last: bool = False
    workers: int = Field(4, ge=0)
    """Processes that decode image folders."""
    resize: Count = 256
    crop: Count = 224
    random_scale: bool = False
    in_memory: bool = False
    """Decode an image folder once, framed centrally, and keep it in memory."""
    test_share: Share = 0.2
    """Held out as test set from a folder that has no val folder."""


class Model(Table):
    name: str
    args: dict[str, Any] = {}
    mean: list[Number] | None = None
    std: list[Positive] | None = None
    weights: str | None = None
    """Weights to begin from."""
    first_layer: str | None = None
    """The module after which yopo splits the network; the model's own `first_layer` by default."""


class Optim(Table):
    name: Literal["sgd", "adamw"] = "sgd"
    lr: Positive = 0.1
    momentum: Share = 0.9
    nesterov: bool = False
    weight_decay: Annotated[float, BeforeValidator(number), Field(ge=0)] = 5e-4
    decay_all: bool = True
    """Whether weight decay also pulls on biases and BatchNorm; the references do."""
    rate: Literal["constant", "piecewise", "one-cycle", "cosine"] = "constant"
    milestones: list[Number] = []
    """Epochs at which a piecewise rate drops."""
    factor: Positive = 0.1
    warmup: Annotated[float, BeforeValidator(number), Field(ge=0)] = 0.0
    """Epochs over which a cosine or piecewise rate rises from 0."""
    peak: Share = 0.4
    """The share of training at which a one-cycle rate is highest."""
    label_smoothing: Share = 0.0
    ema: Share = 0.0
    """Decay of the weight average per step; 0 is off."""

    @model_validator(mode="after")
    def _check(self) -> "Optim":
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0")
        return self


class Train(Table):
    epochs: Count = 10
    seed: int = Field(0, ge=0)
    device: str = "auto"
    engine: Literal["auto", "plain", "fast"] = "auto"
    """auto is fast on a GPU and plain elsewhere."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto is bf16 where the fast engine runs on a GPU, and fp32 elsewhere."""
    deterministic: bool = False
    """Whether only kernels are used that give the same bits every time; slower on a GPU."""
    accumulate: Count = 1
    """Parts in which a batch is trained on before one update, where it does not fit into memory as a whole."""
    sync_bn: bool = False
    """Whether BatchNorm sees the whole batch where several processes share it, not each its part."""
    attack_mode: Literal["eval", "train"] = "eval"
    """The mode of BatchNorm and dropout during the attack."""
    valid_attack: str = "pgd-10"
    """The cheap attack that chooses the best model on the held-out images."""
    valid_every: Count = 1
    guard: Literal["rollback", "stop", "ignore"] = "rollback"
    """What to do when a single-step method collapses (catastrophic overfitting); seen on held-out images."""
    keep_epochs: bool = False
    """Whether the state at the start of every epoch is kept, as `amata criterion` needs it."""
    save_minutes: Positive = 5.0
    tensorboard: bool = True


class Eval(Table):
    attacks: list[str] = ["clean", "pgd-20"]
    step_size: Positive | None = None
    """Step of the PGD attacks; 2.5 eps / K unless given."""
    cw_c: Positive = 1.0
    """The constant c of cw-l2, which the paper calls eps."""
    precision: Literal["tf32", "fp32"] = "tf32"
    """Whether a GPU may round factors to TF32 in evaluations."""
    batch_size: Count = 256
    limit: Count | None = None


STATIC: dict[str, type[Table]] = {"data": Data, "model": Model, "optim": Optim, "train": Train, "eval": Eval}


def table_of(cls: type, key: str, name: str) -> type[BaseModel]:
    """The recipe table whose keys are the fields of a dataclass; floats may be written "8/255". `key` names the class itself."""
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
