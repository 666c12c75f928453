"""Small models, data and Trainers for the suite of transformers."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from harness import BATCH, EPOCHS, Examples, N, Replay, Trace, Watched, draws, sgd, watch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from transformers import (
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

from salience import Draw, ImportanceLoader
from salience.integrations.transformers import ImportanceTrainer

WORDS, PAD = 32, 0  # token numbers; the first token of each text is the example's number + 1
SIZES = {"vocab_size": WORDS, "pad_token_id": PAD, "bos_token_id": None, "eos_token_id": None}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


# ---------------------------------------------------- the harness's classifier, as Trainer has it


class Dicts(Dataset[Any]):
    """The harness's examples as dicts, with a column that the model does not take."""

    def __init__(self) -> None:
        self._examples = Examples()

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, i: int) -> dict[str, Any]:
        x, y = self._examples[i]
        return {"x": x, "label": int(y), "comment": i}


class Classifier(Watched):
    """``Watched`` with the manners of a model for sequence classification."""

    loss_type = "ForSequenceClassification"

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(problem_type=None)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:  # type: ignore[override]
        logits = super().forward(x)
        if labels is None:
            return {"logits": logits}
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


# ----------------------------------------------------------------- small transformers, and texts


class Texts(Dataset[Any]):
    """Texts of 2 to 9 tokens; every fifth has its first half not predicted, one has no labels."""

    def __init__(self, n: int = N, empty: int | None = 7) -> None:
        generator = torch.Generator().manual_seed(2)
        lengths = torch.randint(2, 10, (n,), generator=generator).tolist()
        self.texts = [torch.randint(1, WORDS, (k,), generator=generator) for k in lengths]
        for i, text in enumerate(self.texts):
            text[0] = i + 1
        self.empty = empty

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, i: int) -> dict[str, Any]:
        labels = self.texts[i].clone()
        if i % 5 == 0:
            labels[: len(labels) // 2] = -100
        if i == self.empty:
            labels[:] = -100
        return {"input_ids": self.texts[i], "labels": labels}


class Sentences(Texts):
    """The same texts, with one class, number or set of classes each."""

    def __init__(self, kind: str = "classes", n: int = N) -> None:
        super().__init__(n)
        self.kind = kind

    def __getitem__(self, i: int) -> dict[str, Any]:
        labels: Any = {
            "classes": i % 3,
            "numbers": (i % 7) / 3,
            "sets": torch.tensor([i % 2, i % 3 == 0, i % 5 == 0]).float(),
        }[self.kind]
        return {"input_ids": self.texts[i], "labels": labels}


def pad(examples: list[dict[str, Any]]) -> dict[str, Tensor]:
    """A data collator."""
    texts = [each["input_ids"] for each in examples]
    ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=PAD)
    labels = [torch.as_tensor(each["labels"]) for each in examples]
    together = (
        torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=-100)
        if labels[0].dim() and not labels[0].is_floating_point()
        else torch.stack(labels)
    )
    return {"input_ids": ids, "attention_mask": ids.ne(PAD).long(), "labels": together}


class Noted:
    """A transformer that notes which texts it is trained on."""

    def __init__(self, config: Any) -> None:
        torch.manual_seed(0)
        super().__init__(config)
        self.seen: list[list[int]] = []

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        if self.training:  # type: ignore[attr-defined]
            self.note(input_ids)
        return super().forward(  # type: ignore[misc]
            input_ids, attention_mask=attention_mask, labels=labels, **kwargs
        )

    @torch.compiler.disable
    def note(self, input_ids: Tensor) -> None:
        self.seen.append((input_ids[:, 0] - 1).tolist())


class Gpt2(Noted, GPT2LMHeadModel):
    pass


class Llama(Noted, LlamaForCausalLM):
    pass


class Gpt2Classifier(Noted, GPT2ForSequenceClassification):
    pass


# Trainer and the models themselves go by these names.
Gpt2.__name__, Llama.__name__ = "GPT2LMHeadModel", "LlamaForCausalLM"
Gpt2Classifier.__name__ = "GPT2ForSequenceClassification"


def gpt2_config(**options: Any) -> GPT2Config:
    return GPT2Config(
        n_embd=8, n_layer=1, n_head=2, n_positions=16, **SIZES, **NO_DROPOUT, **options
    )


def gpt2(**options: Any) -> Gpt2:
    """Without loss_type: Trainer counts all labels."""
    return Gpt2(gpt2_config(**options))


def llama() -> Llama:
    """With loss_type: Trainer counts the labels that are predicted."""
    return Llama(
        LlamaConfig(
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=8,
            max_position_embeddings=16,
            **SIZES,
        )
    )


def gpt2_classifier(num_labels: int = 3, **options: Any) -> Gpt2Classifier:
    return Gpt2Classifier(gpt2_config(num_labels=num_labels, **options))


# -------------------------------------------------------------------------------------- Trainers


def arguments(where: Path, **options: Any) -> TrainingArguments:
    """As plain as can be: no clipping, no schedule, no progress bar, a log each step."""
    given = {
        "per_device_train_batch_size": BATCH,
        "per_device_eval_batch_size": 5,
        "num_train_epochs": EPOCHS,
        "max_grad_norm": 0.0,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 3,
        **options,
    }
    return TrainingArguments(str(where), **given)


def plainly(model: Any) -> tuple[Any, Any]:
    """The harness's optimizer, at a constant rate."""
    optimizer = sgd(model)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)


def trainer(
    model: Any,
    where: Path,
    dataset: Any = None,
    *,
    importance: dict[str, Any] | None = None,
    kind: Callable[..., Any] = ImportanceTrainer,
    callbacks: list[Any] | None = None,
    eval_dataset: Any = None,
    normalise: Any = None,
    optimizers: Any = None,
    **options: Any,
) -> Any:
    """An ImportanceTrainer for ``Dicts``, or for texts when it gets such a dataset."""
    dataset = Dicts() if dataset is None else dataset
    return kind(
        model,
        arguments(where, **options),
        train_dataset=dataset,
        eval_dataset=eval_dataset,
        data_collator=pad if isinstance(dataset, Texts) else None,
        callbacks=callbacks,
        optimizers=optimizers or plainly(model),
        importance={"score": "history"} if importance is None else importance,
        normalise=normalise,
    )


class StockTrainer(Trainer):
    """Trainer, on batches recorded before."""

    order: list[list[int]]

    def get_train_dataloader(self) -> DataLoader[Any]:
        replay = Replay(self.order)
        return DataLoader(self.train_dataset, batch_sampler=replay, collate_fn=self.data_collator)


def stock(
    model: Any, where: Path, dataset: Any, order: list[list[int]], **options: Any
) -> StockTrainer:
    loss = options.pop("compute_loss_func", None)
    made = StockTrainer(
        model,
        arguments(where, **options),
        train_dataset=dataset,
        data_collator=pad,
        optimizers=plainly(model),
        compute_loss_func=loss,
    )
    made.order = order
    return made


def losses(made: Any) -> list[float]:
    """What was logged for each update."""
    return [entry["loss"] for entry in made.state.log_history if "loss" in entry]


def trained(made: Any, trace: Trace) -> Trace:
    made.train()
    return trace.finish(made.model)


# --------------------------------------------------------------------- a plain loop over texts


def texts_by_hand(
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[], Any],
    normalise: str,
    accumulate: int,
    workers: int = 0,
    *,
    score: str = "history",
    n: int = N,
    batch_size: int = BATCH,
) -> Trace:
    """Text by text and draw by draw, with the mean number of tokens of all earlier updates."""
    trace, model, texts = watch(monkeypatch), make().train(), Texts(n)
    first = int(isinstance(model, Llama))  # which label is the first that Trainer counts
    loader = ImportanceLoader(texts, batch_size, score=score, seed=3, num_workers=workers)
    optimizer, tokens, examples = sgd(model), 0.0, 0.0

    def count(i: int) -> int:
        return int(texts[i]["labels"][first:].ne(-100).sum())

    def loss(draw: Draw) -> Tensor:
        batch = pad([texts[i] for i in draw.indices.tolist()])
        logits = model(batch["input_ids"], batch["attention_mask"]).logits
        rows = zip(logits[:, :-1], batch["labels"][:, 1:], strict=True)
        each = [F.cross_entropy(*row, ignore_index=-100, reduction="sum") for row in rows]
        if normalise == "sequences":
            counts = batch["labels"][:, 1:].ne(-100).sum(1).clamp(min=1)
            each = [e / c for e, c in zip(each, counts, strict=True)]
        losses = torch.stack(each)
        loader._sampler.update(draw, losses)
        trace.note(losses, draw.weights)
        return (draw.weights * losses).sum()

    for _ in range(EPOCHS):
        batches = draws(loader)
        while group := list(islice(batches, accumulate)):
            now = [
                (1 / (n * float(p)), count(i))
                for draw in group
                for i, p in zip(draw.indices.tolist(), draw.probabilities, strict=True)
            ]
            sums = sum(v * c for v, c in now), sum(v for v, _ in now)
            mean = tokens / examples if examples else sums[0] / sums[1]
            tokens, examples = tokens + sums[0], examples + sums[1]
            items = [  # draws that are uniform count as they are
                sum(count(i) for i in draw.indices.tolist()) if draw.uniform else len(draw) * mean
                for draw in group
            ]
            divisor = sum(items) if normalise == "tokens" else len(now)
            for draw in group:
                (loss(draw) / divisor).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
    return trace.finish(model)
