"""The keys of a recipe: one class per table. The tables [threat], [method] and [schedule] take the
fields of the class that they name."""

import dataclasses
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_origin, get_type_hints

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    model_validator,
)

from amata.errors import InputError
from amata.methods import AWP, Method
from amata.quantity import MOST, number, shown, split_names, steps_of
from amata.recipes.files import TABLES
from amata.recipes.problems import first_problem
from amata.threat import Ball


def _names(value: Any) -> Any:
    """A text is a list with commas, as in --set eval.attacks=clean,pgd-20."""
    return split_names(value) if isinstance(value, str) else value


def _not_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise InputError(f"{value} is not a whole number")
    return value


def _count_or_share(value: Any) -> int | float:
    """Of images: a whole number, or a share below 1."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST:
        return value
    share = number(value) if isinstance(value, float | str) else -1.0
    if 0 < share < 1:
        return share
    if share == 0 or (1 < share <= MOST and share.is_integer()):  # 1.0 may mean all of them
        return int(share)
    raise InputError(f"{shown(value)} must be a number of images, or a share such as 0.1")


def _class_weights(value: Any) -> str | list[float]:
    value = value.tolist() if hasattr(value, "tolist") else value  # a tensor or an array
    if value in ("none", "balanced"):
        return str(value)
    weights = [number(v) for v in value] if isinstance(value, list | tuple) else []
    if weights and all(0 < weight <= MOST for weight in weights):
        return weights
    raise InputError(
        f"{shown(value)} must be 'none', 'balanced' or a list of positive numbers, one per class"
    )


Number = Annotated[float, BeforeValidator(number)]
Share = Annotated[float, BeforeValidator(number), Field(ge=0, lt=1)]
Positive = Annotated[float, BeforeValidator(number), Field(gt=0)]
NotNegative = Annotated[float, BeforeValidator(number), Field(ge=0)]
Rate = Annotated[float, BeforeValidator(number), Field(gt=0, le=1e6)]
Int = Annotated[int, BeforeValidator(_not_bool)]
Count = Annotated[int, Field(ge=1, le=MOST), BeforeValidator(_not_bool)]
CountOrShare = Annotated[int | float, BeforeValidator(_count_or_share)]
ClassWeights = Annotated[Literal["none", "balanced"] | list[float], BeforeValidator(_class_weights)]
Pixels = Annotated[int, Field(ge=1, le=10_000), BeforeValidator(_not_bool)]
Names = Annotated[list[str], BeforeValidator(_names)]


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Data(Table):
    name: str
    """A data set; `amata data` lists them. `hf/NAME` or `hf/OWNER/NAME:CONFIG` is one that the
    package datasets loads."""
    root: str | None = None
    """Folder of the files, a parquet file, or a csv of files and labels; by default $AMATA_DATA, or
    ~/.cache/amata, but `folder` and `parquet` need one."""
    batch_size: Count = 128
    """Images per update, over all processes."""
    augment: Literal["none", "flip", "crop-flip"] = "none"
    """Augmentation of training images: flips, or random crops and flips."""
    flip: Literal["random", "alternating"] = "random"
    """random: an image is mirrored with probability 1/2. alternating: in every second epoch, from
    the first or the second on at random."""
    pad: Int = Field(default=4, ge=0, le=1000)
    """crop-flip: zero padding on each side, in pixels."""
    cutout: Share = 0.0
    """Replace a random rectangle of each training image by its mean colour, after crops and flips:
    the rectangle's sides, as a share of the image's. 0: none; 0.5 is usual on CIFAR-10."""
    limit: Count | None = None
    """Train on N images only: a random sample with the same share of every class."""
    valid: CountOrShare = 0
    """Training images held out as validation split, to select the best checkpoint: a number, or a
    share such as 0.1."""
    drop_last: bool = False
    """Drop the last batch of an epoch if it is smaller than the others."""
    workers: Int = Field(default=4, ge=0, le=1000)
    """Image folders: worker processes that decode images, on each machine. torchrun's processes
    share them."""
    resize: Pixels | None = None
    """Length to which the shorter side of an image is scaled; 256 by default for image folders.
    parquet and hf: by default images are used as they are, and must have one size."""
    crop: Pixels | None = None
    """Side of the square crop; 224 by default for image folders."""
    random_scale: bool = False
    """Image folders: random-resized crops in training, as usual on ImageNet."""
    in_memory: bool = False
    """Image folders: decode once, centre-cropped, and keep all images in memory."""
    test_share: Share = 0.2
    """Image folders and parquet without a test part: share of each class held out as test set."""
    image_column: str | None = None
    """parquet and hf: the column of images; by default image or img."""
    label_column: str | None = None
    """parquet and hf: the column of labels; by default label, labels, fine_label or class."""
    skip_bad: bool = False
    """Image folders: go on without files that cannot be used; all images are decoded once first."""

    @model_validator(mode="after")
    def _check(self) -> "Data":
        if self.flip == "alternating" and self.augment == "none":
            raise ValueError('flip = "alternating" needs augment = "flip" or "crop-flip"')
        return self


class Model(Table):
    name: str
    """A built-in network, such as preactresnet18 or wrn-28-10, `timm/NAME`, or
    `package.module:callable`. A callable gets in_channels, and classes or num_classes."""
    args: dict[str, Any] = {}
    """Further arguments of the network, such as {stem = "small"}."""
    mean: list[Number] | None = Field(default=None, max_length=1000)
    """Mean of each channel, for the normalisation inside the network."""
    std: list[Positive] | None = Field(default=None, max_length=1000)
    """Standard deviation of each channel, for the same normalisation."""
    weights: str | None = None
    """Weights to start from: a .safetensors, .pt or .pth file, or a run folder (its best
    weights)."""
    new_head: bool = False
    """Start with a new classifier if that of `weights` has another number of classes."""
    first_layer: str | None = None
    """Module after which yopo splits the network; by default the model's own `first_layer`."""


class Optim(Table):
    name: Literal["sgd", "adamw", "muon"] = "sgd"
    """The optimiser. muon orthogonalises the updates of hidden matrices and filters, and uses sgd
    for all other parameters: embeddings, tokens, norms, biases and the classifier."""
    lr: Rate = 0.1
    """Peak learning rate."""
    momentum: Share = 0.9
    """Momentum of sgd and muon."""
    nesterov: bool = False
    """Nesterov momentum, in sgd and muon."""
    weight_decay: NotNegative = 5e-4
    """Weight decay: added to the gradient in sgd, decoupled (times the learning rate) in adamw and
    muon."""
    decay_all: bool = True
    """Apply weight decay to biases and BatchNorm parameters too, as reference codes do."""
    lr_schedule: Literal["constant", "piecewise", "one-cycle", "cosine"] = "constant"
    """How the learning rate changes over the epochs."""
    milestones: list[NotNegative] = Field(default=[], max_length=1000)
    """piecewise: epochs at which the learning rate drops; fractions drop within an epoch."""
    factor: Positive = 0.1
    """piecewise: factor of each drop."""
    warmup: NotNegative = 0.0
    """All but one-cycle: epochs of linear warm-up from 0."""
    peak: Share = 0.4
    """one-cycle: share of training at which the learning rate peaks."""
    label_smoothing: Share = 0.0
    """Share of each label that is spread evenly over all classes."""
    class_weights: ClassWeights = "none"
    """Weight of every class in the loss of the updates, in the order of the classes. balanced: the
    mean number of images per class over the class's own, so that every class counts the same."""
    ema: Share = 0.0
    """Largest decay of the EMA weights per update; 0 turns them off. `ema_warmup` lowers it early
    in training: by default 0.998 is reached after 4,500 updates, and has no effect before."""
    ema_warmup: NotNegative = 9.0
    """After t updates the decay of the EMA weights is min(ema, t / (t + ema_warmup)): until `ema`
    is reached they cover about the last 1 / ema_warmup of the run, by default a ninth. 1: the
    mean of all weights until then. 0: `ema` from the start, with some of the first weights."""

    @model_validator(mode="after")
    def _check(self) -> "Optim":
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0")
        return self


class Train(Table):
    epochs: Int = Field(default=10, ge=1, le=10**6)
    """Passes over the training images."""
    seed: Int = Field(default=0, ge=0, lt=2**63)
    """Seed of every random draw."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    engine: Literal["auto", "plain", "fast"] = "auto"
    """auto: fast on a GPU, plain elsewhere."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 with the fast engine on a GPU that has it, fp32 elsewhere."""
    compile: Literal["auto", "always", "never"] = "auto"
    """Fast engine on a GPU: torch.compile. auto leaves it out of short runs and tiny networks,
    where it would take longer than it saves. never uses CUDA graphs alone."""
    deterministic: bool = False
    """Use deterministic kernels only; slower on a GPU."""
    accumulate: Count = 1
    """Gradient accumulation: parts into which a batch is split to save memory."""
    sync_bn: bool = False
    """Several processes: BatchNorm statistics of the whole batch instead of each process's part."""
    attack_mode: Literal["eval", "train"] = "eval"
    """Mode of BatchNorm and dropout during attacks; train uses batch statistics."""
    valid_attack: str = "pgd-10"
    """Attack on the validation split that selects the best checkpoint."""
    valid_every: Count = 1
    """Epochs between two validations."""
    guard: Literal["rollback", "stop", "ignore"] = "rollback"
    """Collapse guard: what to do when held-out images, or training images if none are held out,
    show that robustness was lost with few long attack steps (catastrophic overfitting), or that
    the network collapsed to chance accuracy. rollback restores the last good epoch, then adds an
    attack step or halves the learning rate."""
    eps_warmup: NotNegative = 0.0
    """Epochs W of warm-up of the training radius: eps and step size are times (t + 1) / (W + 1) in
    epoch t = 0, 1, ..., and full from epoch W on. Validation and tests use the full eps."""
    keep_epochs: bool = False
    """Keep the state at the start of every epoch; `amata criterion` needs it."""
    save_minutes: Positive = 5.0
    """Minutes between two checkpoints within an epoch."""
    timeout: Annotated[float, BeforeValidator(number), Field(gt=0, le=10_000)] = 10.0
    """Several processes: minutes to wait for one that does not answer. Raise it if evaluating a
    batch takes longer."""
    tensorboard: bool = True
    """Write TensorBoard events."""
    within: Annotated[float, BeforeValidator(number), Field(gt=0)] | None = None
    """Seconds that `--within` chose epochs and schedule for. A record: a run that repeats the
    recipe takes the same epochs."""

    def eps_factor(self, epoch: int) -> float:
        """The factor of the training radius in an epoch (from 0): min(1, (t + 1) / (W + 1))."""
        return min(1.0, (epoch + 1) / (self.eps_warmup + 1))


class Eval(Table):
    attacks: Names = Field(default=["clean", "pgd-20"], max_length=100)
    """Attacks on the trained model: clean, fgsm, pgd-K, pgd-K-RESTARTS, cw-pgd-K, cw-l2-K,
    autoattack or its parts apgd-ce, apgd-t, fab-t, square; @N after a name attacks N images only.
    corruptions is the accuracy on CIFAR-10-C or CIFAR-100-C."""
    step_size: Positive | None = None
    """Step size of the PGD attacks; 2.5 eps / K by default."""
    cw_c: Positive = 1.0
    """Constant c of cw-l2; the paper calls it eps."""
    precision: Literal["auto", "tf32", "fp32"] = "auto"
    """On a GPU: tf32 computes in TF32, fp32 in full float32. auto is tf32, but attacks search on a
    copy with convolutions in fp16; the model itself judges their images."""
    batch_size: Count = 256
    """Images per attack batch."""
    limit: Count | None = None
    """Evaluate the first N test images only."""
    corruptions: str | None = None
    """Folder of the corruption set; by default where `amata data fetch cifar10-c` put it."""


class PythonOptim(Optim):
    """An optimiser that is made in Python: what is wrong with it is an InputError."""

    if not TYPE_CHECKING:  # type checkers see the fields

        def __init__(self, **fields: Any) -> None:
            try:
                super().__init__(**fields)
            except ValidationError as error:
                name = type(self).__name__
                raise InputError(f"{name}(): {first_problem(error, type(self))}") from None


class SGD(PythonOptim):
    """Stochastic gradient descent with momentum."""

    name: Literal["sgd"] = "sgd"


class AdamW(PythonOptim):
    """Adam with decoupled weight decay."""

    name: Literal["adamw"] = "adamw"
    lr: Rate = 1e-3
    weight_decay: NotNegative = 0.01

    @model_validator(mode="after")
    def _check_fields(self) -> "AdamW":
        # A recipe may hold them for another optimiser; who writes them here expects an effect.
        if unused := sorted(self.model_fields_set & {"momentum", "nesterov"}):
            raise ValueError(f"{unused[0]}: only SGD and Muon have it; leave it out")
        return self


class Muon(PythonOptim):
    """Orthogonal updates for hidden weight matrices and filters, SGD for the rest."""

    name: Literal["muon"] = "muon"
    lr: Rate = 0.02
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
    image_column: None = Field(default=None, exclude=True)
    label_column: None = Field(default=None, exclude=True)
    skip_bad: bool = Field(default=False, exclude=True)
    count: int | None = None
    """Training images."""
    shape: list[int] | None = None
    """Channels, height and width."""
    classes: int | None = None
    batches_per_epoch: Count | None = None
    """Of an iterable that does not know its length, or of a part of one that does."""
    sha256: str | None = None
    """Of pixels and labels; a DataLoader has none, because reading it changes its state."""
    valid_sha256: str | None = None
    """The same of the validation set."""


class PythonModel(Model):
    """A network that was passed to `amata.fit` in Python, as the run records it."""

    name: Literal["python"] = "python"
    args: dict[str, Any] = Field(default={}, exclude=True)
    class_name: str
    parameters: int


class RecordedTable(BaseModel):
    """A user-defined method or schedule: any keys."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: Literal["python"]


STATIC: dict[str, type[Table]] = {
    "data": Data,
    "model": Model,
    "optim": Optim,
    "train": Train,
    "eval": Eval,
}


@cache  # creating a pydantic class is slow
def table_of(cls: type, key: str, name: str) -> type[BaseModel]:
    """The table whose keys are the fields of a dataclass, and `key` for the class itself. Fractions
    such as "8/255" are accepted."""
    fields = {key: (Literal[name], ...), **_fields(cls)}
    if issubclass(cls, Method):
        fields["awp"] = (Annotated[awp_table(), BeforeValidator(_is_table)] | None, None)
    return create_model(f"{cls.__name__}Table", __base__=Table, **fields)


@cache
def awp_table() -> type[BaseModel]:
    """The table [method.awp]: the fields of AWP but its method."""
    return create_model("AWPTable", __base__=Table, **_fields(AWP))


def _is_table(value: Any) -> Any:
    if not isinstance(value, dict):
        raise InputError(f"{shown(value)} is not a table; set method.awp.gamma=0.01 instead")
    return value


def _fields(cls: type) -> dict[str, Any]:
    """The types and defaults of a dataclass's fields, as pydantic wants them. Pairs have readers of
    their own, whose errors say what is wanted."""
    hints, readers = get_type_hints(cls), get_type_hints(cls, include_extras=True)
    fields: dict[str, Any] = {}
    for f in dataclasses.fields(cls):
        if hints[f.name] in (Ball, Method):
            continue  # described by the [threat] table, or by the table around this one
        kind: Any = hints[f.name]
        if kind in (float, float | None):
            read = Annotated[float, BeforeValidator(partial(number, name=f.name))]
            kind = read if kind is float else read | None
        elif kind == int | float:
            kind = Annotated[kind, BeforeValidator(partial(steps_of, name=f.name))]
        elif get_origin(kind) is tuple and get_origin(readers[f.name]) is Annotated:
            own = partial(readers[f.name].__metadata__[0], name=f.name)
            kind = Annotated[kind, BeforeValidator(own)]
        fields[f.name] = (kind, ... if f.default is dataclasses.MISSING else f.default)
    return fields


@cache
def recipe_of(
    threat: type[BaseModel],
    method: type[BaseModel],
    schedule: type[BaseModel],
    data: type[Data],
    model: type[Model],
) -> type[BaseModel]:
    """The schema of a whole recipe with these tables among the static ones."""
    optional = {name: kind for name, kind in STATIC.items() if name not in ("data", "model")}
    tables: dict[str, Any] = {name: (kind, kind()) for name, kind in optional.items()}
    tables |= {"data": (data, ...), "model": (model, ...)}
    tables |= {"threat": (threat, ...), "method": (method, ...), "schedule": (schedule, ...)}
    return create_model("Recipe", __base__=Table, **{name: tables[name] for name in TABLES})
