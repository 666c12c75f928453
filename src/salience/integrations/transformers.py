"""Importance sampling in transformers' Trainer: sequence classification and causal language models.

::

    from salience.integrations.transformers import ImportanceTrainer

    trainer = ImportanceTrainer(model, args, train_dataset=train)   # was Trainer(...)
    trainer.train()
"""

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from salience import ImportanceLoader
from salience.batches.slots import KEY
from salience.errors import StateError, UsageError
from salience.generators import seeded
from salience.integrations._shared import check_fingerprint, extra
from salience.scores import NEED_MODEL

with extra("transformers"):
    from transformers import Trainer

    from salience.integrations._accelerate import fingerprint_of, refuse_shared_batches
    from salience.integrations._transformers import (
        FILE,
        IGNORED,
        Drawn,
        MeanTokens,
        checked,
        classification_losses,
        labels_of,
        last_drawn,
        normalisation,
        read_state,
        refuse_arguments,
        refuse_tokens_of_one_device,
        skipped_batches,
        task_of,
        token_losses,
        with_length,
    )

__all__ = ["ImportanceMixin", "ImportanceTrainer"]

DIVISOR = "salience_divisor"

if TYPE_CHECKING:
    Base: TypeAlias = Trainer
else:
    Base = object


class ImportanceMixin(Base):
    """Importance sampling for a Trainer class of your own.

    ::

        class MyTrainer(ImportanceMixin, Trainer): ...

    Arguments, besides the Trainer's own:
        importance: arguments of ``ImportanceLoader`` such as ``{"score": "auto", "k": 0.5}``.
            ``seed`` is by default ``data_seed`` of the TrainingArguments, or else ``seed``.
        normalise: ``"tokens"``, the loss per token, as Trainer has it: the default for language
            models. ``"sequences"``: the mean of each sequence's mean token loss, the default for
            everything else.

    For other tasks override ``per_example_loss``. ``loader`` is the ImportanceLoader in use.
    """

    loss_is_scaled_for_ga = True  # read by Trainer: we divide by the whole accumulated batch
    loader: ImportanceLoader | None = None

    def __init__(
        self,
        *args: Any,
        importance: Mapping[str, Any] | None = None,
        normalise: Literal["tokens", "sequences"] | None = None,
        **kwargs: Any,
    ) -> None:
        self._importance = checked(importance or {})
        super().__init__(*args, **kwargs)
        refuse_arguments(self.args, self.compute_loss_func)
        refuse_shared_batches(self.accelerator)
        own = type(self).per_example_loss is not ImportanceMixin.per_example_loss
        self._task = "own" if own else task_of(self.model)
        self.normalise = normalisation(normalise, self._task)
        if self.normalise == "tokens":
            refuse_tokens_of_one_device(self.args)
        self._tokens = MeanTokens()

    # ------------------------------------------------------------------------------------- losses

    def per_example_loss(self, outputs: Any, labels: Tensor) -> Tensor:
        """One loss per example [B], from what the model returned for inputs without labels.

        With ``normalise="tokens"``, the sum over its tokens.
        """
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        smoothing = self.label_smoother.epsilon if self.label_smoother is not None else 0.0
        if self._task == "classification":
            return classification_losses(logits, labels, self.model.config, smoothing)
        return token_losses(logits, labels, smoothing, mean=self.normalise == "sequences")

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any
    ) -> Any:
        """In training, the weighted mean of per-example losses. Evaluation is Trainer's own."""
        if KEY not in inputs:
            if self.is_in_train and model.training:
                raise UsageError(
                    f"a training batch came without {KEY!r}, so its weights are not known: "
                    f"do not override get_train_dataloader below ImportanceMixin"
                )
            return super().compute_loss(model, inputs, return_outputs=return_outputs, **kwargs)
        slots, divisor = inputs[KEY], inputs[DIVISOR]
        losses, outputs = self._losses(model, inputs)
        assert self.loader is not None
        loss = self.loader.mean(losses, slots, divisor)
        return (loss, outputs) if return_outputs else loss

    def _losses(self, model: Any, batch: Any) -> tuple[Tensor, Any]:
        inputs = {key: batch[key] for key in batch if key not in (KEY, DIVISOR)}
        labels = labels_of(inputs)
        del inputs["labels"]
        outputs = model(**inputs)
        if isinstance(outputs, dict) and outputs.get("aux_loss") is not None:
            raise UsageError(
                f"{type(model).__name__} returns an aux_loss, which belongs to no single example: "
                f"turn it off with model.config.output_router_logits = False"
            )
        return self.per_example_loss(outputs, labels), outputs

    # ------------------------------------------------------------------------------------ batches

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As Trainer's; each call begins with a new sampler, or with that of a checkpoint."""
        self.loader, self._tokens = None, MeanTokens()
        return super().train(*args, **kwargs)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The batches of a new ImportanceLoader, over the dataset and collator of Trainer's own."""
        loader = self._make_loader(super().get_train_dataloader())
        batches = _Batches(loader)
        # The first is what is trained with; a second one comes when a batch did not fit in memory.
        known = self.loader is not None and self.loader.batch_size == loader.batch_size
        if self.is_in_train and not known:
            self.loader, self._batches = loader, batches
        return DataLoader(
            batches,
            batch_size=None,
            collate_fn=_unchanged,
            generator=seeded(0),
        )

    def _make_loader(self, stock: Any) -> ImportanceLoader:
        args, options = self.args, dict(self._importance)
        if options.get("score") in NEED_MODEL:
            options.update(model=self.model, loss=_ScoringLoss(self))
        options.setdefault("seed", args.seed if args.data_seed is None else args.data_seed)
        return ImportanceLoader(
            with_length(stock.dataset),
            self._train_batch_size,
            slots=True,
            collate_fn=stock.collate_fn,
            drop_last=args.dataloader_drop_last,
            num_workers=stock.num_workers,
            pin_memory=stock.pin_memory,
            prefetch_factor=stock.prefetch_factor,
            persistent_workers=stock.persistent_workers,
            multiprocessing_context=stock.multiprocessing_context,
            worker_init_fn=stock.worker_init_fn,
            in_order=args.dataloader_in_order,
            **options,
        )

    def num_examples(self, dataloader: Any) -> int:
        """Of the dataset: the length of our view is in batches."""
        if isinstance(dataloader.dataset, _Batches):
            return len(dataloader.dataset.loader.dataset)
        return int(super().num_examples(dataloader))

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """The batches of one update; each is told by what to divide the sum of its losses."""
        loader, drawn = self.loader, list[Drawn]()
        assert loader is not None

        def noted() -> Iterator[Any]:
            for batch in epoch_iterator:
                drawn.append(last_drawn(loader))
                yield batch

        batches, _ = super().get_batch_samples(noted(), num_batches, device)
        total = self._items(batches, drawn)
        for batch, (draw, *_) in zip(batches, drawn, strict=True):
            # The weights of merged draws are for a mean over rows, see Draw.inverse.
            merged = 1.0 if draw.counts is None else len(draw) / draw.counts.sum()
            # Gradients are averaged over the processes, and the items are those of all of them.
            batch[DIVISOR] = torch.as_tensor(total * merged / loader._sampler.ranks.world)
        return batches, total

    def _items(self, batches: list[Any], drawn: list[Drawn]) -> Any:
        """Tokens or examples in all ``batches`` of an update, of all processes together."""
        if self.normalise == "sequences":
            return sum(each.examples for each in drawn)
        counts = [self._count_tokens(batch) for batch in batches]
        return self._tokens.items(drawn, counts, self._sum_over_processes)

    def _sum_over_processes(self, values: Tensor) -> Tensor:
        if self.args.world_size == 1:
            return values
        total: Tensor = self.accelerator.reduce(values.to(self.args.device), "sum")
        return total

    def _count_tokens(self, batch: Any) -> Tensor:
        """Per example, as Trainer counts them."""
        labels = labels_of(batch)
        labels = labels[..., 1:] if self._loss_shifts_labels else labels
        counts: Tensor = labels.ne(IGNORED).flatten(1).sum(1)
        return counts

    # -------------------------------------------------------------------------------- checkpoints

    def _save_rng_state(self, output_dir: str) -> None:
        """Trainer's last step before it writes trainer_state.json: without us, no checkpoint.

        All processes come here and have the same state; those that save for the others write it.
        """
        super()._save_rng_state(output_dir)
        assert self.loader is not None
        state = {
            "step": self.state.global_step,
            "model": self._fingerprint(),
            "sampler": self.loader.state_dict(),
            "tokens": self._tokens.state_dict(),
        }
        self.accelerator.wait_for_everyone()  # their random states are part of the checkpoint
        if self.args.should_save:
            path = Path(output_dir, FILE)
            torch.save(state, path.with_suffix(".part"))
            os.replace(path.with_suffix(".part"), path)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self._load_sampler(Path(checkpoint, FILE))

    def _load_sampler(self, path: Path) -> None:
        saved = read_state(path, self.state.global_step)
        self._check_model(saved["model"], path)
        assert self.loader is not None
        self.loader.load_state_dict(saved["sampler"])
        done = self.loader._done
        skipped = skipped_batches(self.args, self.state.global_step, len(self.loader))
        if done != skipped:
            raise StateError(
                f"{path} was saved after {done} batches of an epoch, and Trainer would skip "
                f"{skipped}: resume with the gradient_accumulation_steps, steps_per_epoch and "
                f"ignore_data_skip=False that it was saved with"
            )
        self._batches.placeholders = done
        self._tokens.load_state_dict(saved["tokens"])

    def _fingerprint(self) -> Tensor:
        return fingerprint_of(self.accelerator, [self.model])

    def _check_model(self, saved: Tensor, path: Path) -> None:
        try:
            check_fingerprint(saved, self._fingerprint(), str(path))
        except StateError as error:
            raise StateError(
                f"{error}; if Trainer has warned of missing keys, it did not restore the model: "
                f"make it with from_pretrained({str(path.parent)!r}) and resume"
            ) from error

    # ------------------------------------------------------------------------------------ logging

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """With ``importance/...`` beside the training loss."""
        if self.loader is not None and "loss" in logs:
            metrics = self.loader.metrics()
            known = {f"importance/{key}": v for key, v in metrics.items() if not math.isnan(v)}
            logs = {**logs, **known}
        super().log(logs, *args, **kwargs)


@final
class ImportanceTrainer(ImportanceMixin, Trainer):
    """``transformers.Trainer`` that draws examples by importance; see ``ImportanceMixin``.

    ::

        trainer = ImportanceTrainer(model, args, train_dataset=train, importance={"k": 0.5})
    """


@final
class _Batches(IterableDataset[Any]):
    """The batches of a loader; those that were done before a resume are empty, for Trainer to skip.

    Trainer counts the batches of an epoch from its beginning, and the loader yields the rest.
    """

    def __init__(self, loader: ImportanceLoader) -> None:
        self.loader, self.placeholders = loader, 0

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        done, self.placeholders = self.placeholders, 0
        yield from ({} for _ in range(done))
        yield from self.loader


@final
class _ScoringLoss:
    """The losses per example that ``trainer`` computes, for scores that need the model.

    A Trainer does not pickle, and loaders do: a copy has what ``per_example_loss`` of ours reads.
    """

    def __init__(self, trainer: ImportanceMixin) -> None:
        self._trainer = trainer

    def __call__(self, model: Any, batch: Any) -> Tensor:
        return self._trainer._losses(model, batch)[0]

    def __getstate__(self) -> dict[str, Any]:
        bare = object.__new__(type(self._trainer))
        for name in ("model", "label_smoother", "normalise", "_task"):
            setattr(bare, name, getattr(self._trainer, name))
        return {"_trainer": bare}


def _unchanged(batch: Any) -> Any:
    return batch
