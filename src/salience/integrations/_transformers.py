"""What the Trainer needs besides its hooks: losses per example, counts of tokens, and checks."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset
from transformers.loss.loss_utils import (
    LOSS_MAPPING,
    ForCausalLMLoss,
    ForSequenceClassificationLoss,
)

from salience.draw import Draw
from salience.errors import ArgumentError, LossError, StateError, UsageError
from salience.loader import ImportanceLoader

__all__ = [
    "FILE",
    "IGNORED",
    "Drawn",
    "MeanTokens",
    "checked",
    "classification_losses",
    "labels_of",
    "last_drawn",
    "normalisation",
    "number",
    "read_state",
    "refuse_arguments",
    "refuse_tokens_of_one_device",
    "skipped_batches",
    "task_of",
    "token_losses",
    "with_length",
]

FILE = "importance.pt"
IGNORED = -100
# Given by the Trainer, or by its arguments.
TAKEN = {"self", "dataset", "batch_size", "model", "loss", "slots", "dataloader_options"}
ACCEPTED = tuple(
    p for p in inspect.signature(ImportanceLoader.__init__).parameters if p not in TAKEN
)


# ---------------------------------------------------------------------------- losses per example


def labels_of(batch: Mapping[str, Any]) -> Tensor:
    """What a batch is trained for."""
    if (labels := batch.get("labels")) is None:
        raise UsageError(
            f"a training batch has no 'labels', only {', '.join(batch)}: name its targets "
            f"'labels' in the dataset or in the data collator"
        )
    found: Tensor = labels
    return found


def classification_losses(logits: Tensor, labels: Tensor, config: Any, smoothing: float) -> Tensor:
    """As ForSequenceClassification models compute them: the problem follows from the labels."""
    kind = config.problem_type
    if kind is None and logits.shape[-1] == 1:
        kind = "regression"
    if kind is None and labels.is_floating_point():
        kind = "multi_label_classification"
    if smoothing and kind in ("regression", "multi_label_classification"):
        raise ArgumentError(
            f"label_smoothing_factor={smoothing} has no meaning for {kind}: set it to 0"
        )
    if kind == "regression":
        return F.mse_loss(logits, labels.view_as(logits).to(logits.dtype), reduction="none").mean(1)
    if kind == "multi_label_classification":
        labels = labels.to(logits.dtype)
        return F.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(1)
    return F.cross_entropy(logits, labels.view(-1), reduction="none", label_smoothing=smoothing)


def token_losses(logits: Tensor, labels: Tensor, smoothing: float, *, mean: bool) -> Tensor:
    """The sum or mean over the tokens of each sequence; each token is predicted from those before.

    Labels of -100 are not predicted. A sequence without labels has loss 0.
    """
    if logits.shape[:-1] != labels.shape:
        raise LossError(
            f"logits of shape {list(logits.shape)} do not belong to labels of shape "
            f"{list(labels.shape)}: override per_example_loss(outputs, labels)"
        )
    targets = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, 1)
    losses = F.cross_entropy(logits, targets.flatten(), reduction="none", label_smoothing=smoothing)
    sums = losses.view_as(targets).sum(1)
    return sums / targets.ne(IGNORED).sum(1).clamp(min=1) if mean else sums


# -------------------------------------------------------------------------------------- tokens


class Drawn(NamedTuple):
    """A batch of this process, and what it is a part of."""

    draw: Draw  # the rows of this process
    examples: Any  # how many were drawn, by all processes together
    uniform: bool


def last_drawn(loader: ImportanceLoader) -> Drawn:
    """For the batch last yielded, which is not weighed yet."""
    draw, sampler = loader.last_draw, loader._sampler
    whole = sampler.outstanding[draw.number]
    # Pools and shards are each process' own, and so is a draw from them.
    parts = sampler.ranks.world if sampler.sharded or not sampler.by_index else 1
    return Drawn(draw, parts * number(whole), whole.uniform)


Sums = tuple[Any, Any]


@final
class MeanTokens:
    """The mean number of tokens per example of the dataset, estimated from what was drawn.

    T = sum_i v_i T_i / sum_i v_i over all earlier draws, with v_i = 1 / (M p_i).
    """

    def __init__(self) -> None:
        self._sums: Sums | None = None  # of v_i T_i and of v_i

    def items(
        self,
        drawn: list[Drawn],
        counts: list[Tensor],
        over_processes: Callable[[Tensor], Tensor] = lambda sums: sums,
    ) -> Tensor:
        """The tokens that the losses of one update are divided by, from the counts per example.

        Uniform draws count as they are, like in Trainer. Draws by importance prefer long
        sequences: divided by the tokens that were drawn, the expected step would be too small. So
        a batch of B counts as B x T tokens, whatever was drawn; T is known from earlier updates.
        """
        sums = [_sums(each, count) for each, count in zip(drawn, counts, strict=True)]
        as_they_are, tokens, examples = over_processes(torch.stack(sums).sum(0))
        before = self._sums or (tokens, examples)
        by_importance = sum(each.examples for each in drawn if not each.uniform)
        if self._sums is None:
            self._sums = before
        else:
            self._sums = (before[0] + tokens, before[1] + examples)
        total: Tensor = as_they_are + by_importance * (before[0] / before[1])
        return total.clamp(min=1)

    def state_dict(self) -> list[float]:
        return [float(each) for each in self._sums or ()]

    def load_state_dict(self, state: list[float]) -> None:
        tokens, examples = torch.tensor(state or [0, 0], dtype=torch.float64, device="cpu")
        self._sums = (tokens, examples) if state else None


def _sums(drawn: Drawn, counts: Tensor) -> Tensor:
    """Tokens if drawn uniformly, sum_i v_i T_i and sum_i v_i, where the draw is."""
    draw = drawn.draw
    inverse = (draw.weights != 0) / (draw.pool * draw.probabilities)  # padding weighs nothing
    if draw.counts is not None:
        inverse = inverse * draw.counts
    counts = counts.to(inverse)
    uniform = (counts * (draw.weights != 0)).sum() if drawn.uniform else torch.zeros_like(counts[0])
    return torch.stack([uniform, (inverse * counts).sum(), inverse.sum()])


def number(draw: Draw) -> Any:
    """How many draws: a row may stand for several."""
    return len(draw) if draw.counts is None else draw.counts.sum()


# ---------------------------------------------------------------------------------------- checks


def checked(importance: Mapping[str, Any]) -> dict[str, Any]:
    unknown = [key for key in importance if key not in ACCEPTED]
    if unknown:
        raise ArgumentError(
            f"importance has no {', '.join(map(repr, unknown))}: it takes {', '.join(ACCEPTED)}; "
            f"options of the DataLoader belong into TrainingArguments"
        )
    return dict(importance)


def refuse_arguments(args: Any, compute_loss_func: Any) -> None:
    """What would take draws apart, or replace the losses or the order that we need."""
    _refuse_many_devices(args)
    if compute_loss_func is not None:
        raise ArgumentError(
            "compute_loss_func returns one number per batch, and importance sampling needs one per "
            "example: override per_example_loss(outputs, labels) instead"
        )
    if args.train_sampling_strategy != "random":
        raise ArgumentError(
            f"train_sampling_strategy={args.train_sampling_strategy!r} cannot be kept, because the "
            f"score decides the order: leave it at 'random'"
        )


def _refuse_many_devices(args: Any) -> None:
    if args.n_gpu > 1:
        raise ArgumentError(
            f"one process with {args.n_gpu} devices would split each batch among them "
            f"(DataParallel): start one process per device with torchrun, or show it one device"
        )


def refuse_tokens_of_one_device(args: Any) -> None:
    if args.world_size > 1 and not args.average_tokens_across_devices:
        raise ArgumentError(
            "average_tokens_across_devices=False divides by the tokens of each process alone, and "
            "the step of all processes would not be that of one batch: leave it at True"
        )


def task_of(model: Any) -> str:
    """``"classification"`` or ``"causal"``, where the model's own loss is known to be the usual."""
    model = model.get_base_model() if hasattr(model, "get_base_model") else model  # PEFT
    loss = LOSS_MAPPING.get(getattr(model, "loss_type", None))
    if loss is ForSequenceClassificationLoss:
        return "classification"
    # GPT2LMHeadModel and others have no loss_type, and all the same this loss_function. Some
    # (BartForCausalLM) have the name of a causal language model and a loss of their own.
    shifts = getattr(model, "loss_function", None) is ForCausalLMLoss and _calls_loss_function(
        model
    )
    if shifts and not model.config.is_encoder_decoder:
        return "causal"
    raise ArgumentError(
        f"the loss per example of {type(model).__name__} is not known (known are sequence "
        f"classification and causal language models): override per_example_loss(outputs, labels) "
        f"in a class MyTrainer(ImportanceMixin, Trainer)"
    )


def _calls_loss_function(model: Any) -> bool:
    forwards = [
        inspect.unwrap(vars(c)["forward"]) for c in type(model).__mro__ if "forward" in vars(c)
    ]
    return any("loss_function" in getattr(f, "__code__", f).co_names for f in forwards)


def normalisation(given: Any, task: str) -> str:
    if given is None:
        return "tokens" if task == "causal" else "sequences"
    if given not in ("tokens", "sequences"):
        raise ArgumentError(f"normalise must be 'tokens', 'sequences' or None; got {given!r}")
    if given == "tokens" and task == "classification":
        raise ArgumentError(
            "normalise='tokens' is for losses per token, and a classification has one loss per "
            "sequence: leave it out"
        )
    return str(given)


def with_length(dataset: Any) -> Dataset[Any]:
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise ArgumentError(
            f"train_dataset must have a length and be read by index to be drawn from; got "
            f"{type(dataset).__name__}: use a dataset that is not streamed"
        )
    checked: Dataset[Any] = dataset
    return checked


def read_state(path: Path, step: int) -> dict[str, Any]:
    """What ``_save_rng_state`` wrote at ``step``."""
    if not path.is_file():
        raise StateError(
            f"{path.parent} has no {FILE}, so it is not known which examples come next: resume "
            f"from a checkpoint that ImportanceTrainer saved with save_only_model=False, or load "
            f"the model with from_pretrained and train without resume_from_checkpoint"
        )
    try:
        saved: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        known = int(saved["step"])
    except Exception as error:  # torch's own are of many kinds
        why = " ".join(str(error).split())[:80] or type(error).__name__
        raise StateError(f"{path} is damaged ({why}): resume from another checkpoint") from error
    if known != step:
        raise StateError(
            f"{path} was saved at step {known} and the rest of the checkpoint at {step}: "
            f"resume from another checkpoint"
        )
    return saved


def skipped_batches(args: Any, step: int, batches: int) -> int:
    """How many batches of the epoch Trainer skips when it resumes after ``step`` updates."""
    if args.ignore_data_skip:
        return 0
    updates = -(-batches // args.gradient_accumulation_steps)
    return int(step % updates * args.gradient_accumulation_steps)
