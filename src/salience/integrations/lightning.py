"""Lightning: the loader works as it is; a callback logs its metrics and completes checkpoints.

::

    class Classifier(L.LightningModule):
        def training_step(self, batch, batch_idx):
            x, y = batch
            losses = F.cross_entropy(self(x), y, reduction="none")
            return self.trainer.train_dataloader.mean(losses)

    trainer = L.Trainer(callbacks=[LogImportance()])
    trainer.fit(Classifier(), ImportanceLoader(dataset, 128))
"""

import math
from typing import Any, final

from torch.utils._pytree import tree_leaves

from salience.errors import ArgumentError, UsageError
from salience.integrations._shared import extra
from salience.loader import ImportanceLoader

with extra("lightning"):
    from lightning.pytorch import Callback, LightningModule, Trainer

__all__ = ["LogImportance"]


@final
class LogImportance(Callback):
    """Log ``loader.metrics()`` every ``every`` steps, and make every checkpoint continue exactly.

    ``every``: None is the trainer's ``log_every_n_steps``. Values that are not known yet (nan) are
    left out. Only rank 0 logs.

    Lightning stores the state of the loader in its checkpoints, but does not read it from those
    that are saved at the end of an epoch. It also ends epochs early (``limit_train_batches``)
    without telling the loader. This callback does both.
    """

    def __init__(self, every: int | None = None, *, prefix: str = "importance/") -> None:
        if every is not None and every < 1:
            raise ArgumentError(f"every must be >= 1, or None for the trainer's; got {every!r}")
        self._every, self._prefix = every, prefix

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        _loaders(trainer)
        if trainer.overfit_batches:
            raise UsageError(
                f"overfit_batches={trainer.overfit_batches} would not repeat the same batches, "
                f"since the score decides what is drawn: train on a Subset of the dataset"
            )
        _load_what_is_left(trainer)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        loaders = _loaders(trainer)
        if trainer.is_last_batch:
            for loader in loaders:
                loader._end_early()
        if trainer.is_global_zero and trainer.loggers and self._is_due(trainer):
            self._log(trainer, loaders)

    def _is_due(self, trainer: Trainer) -> bool:
        """When Lightning logs, or every so many steps; not while gradients are accumulated."""
        every = self._every or trainer.log_every_n_steps
        if not every or trainer.fit_loop._should_accumulate():
            return False
        return bool((_step(trainer) + 1) % every == 0)

    def _log(self, trainer: Trainer, loaders: list[ImportanceLoader]) -> None:
        values = {}
        for number, loader in enumerate(loaders):
            prefix = self._prefix if len(loaders) == 1 else f"{self._prefix}{number}/"
            known = {k: v for k, v in loader.metrics().items() if not math.isnan(v)}
            values.update({prefix + name: value for name, value in known.items()})
        for logger in trainer.loggers:
            logger.log_metrics(values, step=_step(trainer))


def _loaders(trainer: Trainer) -> list[ImportanceLoader]:
    """All that are trained on; there may be several in a list or dict."""
    given = tree_leaves(trainer.train_dataloader)
    loaders = [each for each in given if isinstance(each, ImportanceLoader)]
    if not loaders:
        raise UsageError(
            f"LogImportance found no ImportanceLoader in trainer.train_dataloader "
            f"({', '.join(type(each).__name__ for each in given)}): train on one, or leave it out"
        )
    return loaders


def _step(trainer: Trainer) -> int:
    """As Lightning numbers what it logs itself."""
    return int(trainer.fit_loop.epoch_loop._batches_that_stepped)


def _load_what_is_left(trainer: Trainer) -> None:
    """The states that Lightning read from a checkpoint and did not load: the epoch was over.

    Where ``max_steps`` stopped it in the middle, too: Lightning begins the next one.
    """
    loop = trainer.fit_loop
    if loop._combined_loader_states_to_load:
        loop._combined_loader._load_state_dicts(loop._combined_loader_states_to_load)
        loop._combined_loader_states_to_load = []
        for loader in _loaders(trainer):
            loader._end_early()
        iter(loop._data_fetcher)  # a stream was fetched from before it had its state
