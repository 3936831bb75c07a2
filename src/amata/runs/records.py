"""The types of the files in a run folder, against which they are checked when they are read."""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from amata.metrics import Amount, Count, EpochRow, Event, Finite, Index, Share


class Params(TypedDict, total=False):
    """The parameters of an attack that tables show; there may be others."""

    norm: str
    eps: Amount
    steps: Index
    step_size: Amount
    restarts: Index
    c: Amount
    version: str


Part = Literal["apgd-ce", "apgd-t", "fab-t", "square"]
"""PARTS of attacks/auto_attack.py."""


class Evaluation(TypedDict):
    """The accuracy under one attack, as `Result.to_dict` writes it."""

    accuracy: Share
    n: Count
    low: Share
    high: Share
    grad_evals: Index
    seconds: Amount
    params: Params
    warnings: list[str]
    non_finite: NotRequired[Index]
    outcomes: NotRequired[str | None]
    """One bit per image, in base64."""
    per_class: NotRequired[list[list[Index]]]
    parts: NotRequired[dict[Part, Share]]


class WallSeconds(TypedDict):
    """What the process that finished a run spent its time on."""

    start: Finite
    data: Finite
    compile: Finite
    train: Finite
    valid: Finite
    evaluate: Finite
    save: Finite
    total: Finite


class Summary(TypedDict):
    """summary.json."""

    recipe: str
    epochs: Count
    train_seconds: Amount
    wall_seconds: NotRequired[WallSeconds]
    grad_evals: Count
    grad_evals_per_image: Annotated[Amount, Field(gt=0)]
    best_epoch: Index | None
    evaluation: dict[str, Evaluation]
    metrics_sha256: NotRequired[str]
    """Of metrics.jsonl."""


Shape = Annotated[list[Annotated[int, Field(ge=1, le=10_000)]], Field(min_length=3, max_length=3)]


class Sizes(TypedDict, total=False):
    """What a network must know of the data. Earlier versions did not record it."""

    classes: Annotated[list[str], Field(min_length=1)]
    """Their names."""
    shape: Shape
    """Channels, height and width of an image."""


class Split(Sizes, total=False):
    """split.json: which images a run used. Earlier versions wrote fewer keys."""

    seed: int
    train: Index
    valid: Index
    valid_ids: list[int]
    train_hash: str
    test_hash: str
    train_pixels: str
    test_pixels: str
    valid_hash: str
    """Of a folder's own validation part, as the next one."""
    valid_pixels: str
    skipped: Index
    """Files of a folder that could not be used."""


class PlannedSeconds(TypedDict):
    """From the start of the command to the trained model: expected, and the interval."""

    total: Amount
    low: Amount
    high: Amount


class PlannedAccuracy(TypedDict):
    """The expected accuracy under an attack, and its 95% interval."""

    attack: str
    accuracy: Share
    low: Share
    high: Share


class Plan(TypedDict):
    """plan.json: what was expected of a run that was given a time. Other keys are not read."""

    within: Amount
    epochs: Index
    steps: list[Finite]
    seconds: PlannedSeconds
    accuracy: PlannedAccuracy | None


class Exported(TypedDict):
    """The keys of an exported folder's config.json that `amata.load` reads."""

    name: str
    recipe: dict[str, Any]
    id2label: Annotated[dict[str, str], Field(min_length=1)]
    """The names of the classes by their numbers, as the Hugging Face Hub has them."""
    shape: Shape


class Environment(TypedDict):
    """What the numbers of a run depend on besides its recipe."""

    python: str
    platform: str
    machine: str
    packages: dict[str, str]
    device: str
    threads: int
    """CPU threads."""
    commit: str | None
    code: NotRequired[dict[str, str]]
    """Of the user's classes in a training: a hash of each."""


class Environments(Environment):
    """env.json: the environment of the last start, and those of the starts before it."""

    earlier: NotRequired[list[Environment]]


class Checkpoint(TypedDict):
    """What every checkpoint's record has besides the state of the training."""

    fingerprint: str
    """Of the recipe."""
    tensors: str
    """The checksum of its safetensors file."""
    best_epoch: NotRequired[Index | None]


class Stats(TypedDict):
    """Counts over the images of an evaluation, as `ModelStats` has them."""

    images: Index
    correct: Index
    non_finite: Index
    class_sum: Index
    class_square_sum: Index
    probed: Index
    zero_gradient: Index


class Tally(TypedDict):
    """One attack of an evaluation, finished or not."""

    batches: Index
    images: Index
    non_finite: Index
    bad_gradients: Index
    grad_evals: Index
    seconds: Amount
    outcomes: str
    parts: dict[Part, Index]


class EvaluationState(TypedDict):
    """What an evaluation continues from, as `State.to_dict` writes it."""

    batches: Index
    classes: Annotated[Index, Field(le=1_000_000)]
    total: Index | None
    labels: str
    """Four bytes per image, in base64."""
    stats: Stats
    tallies: dict[str, Tally]


class Context(TypedDict):
    """What the results of an evaluation depend on, besides the attack."""

    weights: str
    recipe: str
    """A hash of its tables for model and data."""
    data: str
    test_hash: str
    test_pixels: str
    images: Count
    norm: str
    eps: Amount
    step_size: Amount | None
    cw_c: Amount
    batch_size: Count
    seed: Index
    engine: str
    precision: str
    device: str
    torch: str


class Evaluations(TypedDict):
    """A file in evaluations/."""

    context: Context
    date: str
    environment: Environment
    state: EvaluationState
    results: dict[str, Evaluation]


CHECKPOINT = TypeAdapter(Checkpoint)
SUMMARY = TypeAdapter(Summary)
EVALUATIONS = TypeAdapter(Evaluations)
ENVIRONMENTS = TypeAdapter(Environments)
SPLIT: TypeAdapter[Any] = TypeAdapter(Split)
PLAN: TypeAdapter[Any] = TypeAdapter(Plan)
SIZES: TypeAdapter[Any] = TypeAdapter(Sizes)
EXPORTED: TypeAdapter[Any] = TypeAdapter(Exported)
EPOCH = TypeAdapter(EpochRow)
EVENT = TypeAdapter(Event)
