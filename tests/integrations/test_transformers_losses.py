"""Losses per example, what they are divided by, and what is refused."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from harness import BATCH, EPOCHS, N, Watched
from torch import Tensor, nn
from torch.utils.data import IterableDataset
from transformers import (
    BartConfig,
    BartForCausalLM,
    GPT2ForTokenClassification,
    MixtralConfig,
    MixtralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
)
from transformers_parts import (
    SIZES,
    Classifier,
    Sentences,
    Texts,
    gpt2,
    gpt2_classifier,
    gpt2_config,
    llama,
    losses,
    pad,
    trainer,
)

from salience import Draw
from salience.distributed import Ranks, rows_of
from salience.errors import ArgumentError, LossError, UsageError
from salience.feedback import weighted_mean
from salience.integrations._transformers import (
    Drawn,
    MeanTokens,
    _sums,
    classification_losses,
    token_losses,
)
from salience.integrations.transformers import ImportanceMixin

HISTORY = {"score": "history"}


# ------------------------------------------------------------------------- losses per example


def alone(model: Any, example: dict[str, Any]) -> float:
    """The model's own loss for one example, without padding."""
    labels = torch.as_tensor(example["labels"]).unsqueeze(0)
    return model(example["input_ids"].unsqueeze(0), labels=labels).loss.item()


@pytest.mark.parametrize("make", [gpt2, llama])
def test_padding_changes_no_loss(make: Any) -> None:
    model, texts = make().eval(), Texts(empty=None)
    examples = [texts[i] for i in range(N)]
    batch = pad(examples)
    logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    means = token_losses(logits, batch["labels"], 0.0, mean=True)
    assert means.tolist() == pytest.approx([alone(model, e) for e in examples], abs=1e-5)
    counts = batch["labels"][:, 1:].ne(-100).sum(1)
    sums = token_losses(logits, batch["labels"], 0.0, mean=False)
    torch.testing.assert_close(sums, means * counts)


@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_text_without_labels_has_loss_0_and_a_finite_gradient(
    mean: bool, smoothing: float
) -> None:
    logits = torch.randn(2, 5, 7, requires_grad=True)
    labels = torch.full((2, 5), -100)
    labels[1, 2:] = 3
    both = token_losses(logits, labels, smoothing, mean=mean)
    assert both[0] == 0
    assert both[1] > 0
    both.sum().backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert logits.grad[0].abs().sum() == 0


@pytest.mark.parametrize(("kind", "num_labels"), [("classes", 3), ("numbers", 1), ("sets", 3)])
def test_classifications_are_those_of_the_model(kind: str, num_labels: int) -> None:
    model, texts = gpt2_classifier(num_labels).eval(), Sentences(kind)
    examples = [texts[i] for i in range(N)]
    batch = pad(examples)
    logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    config = SimpleNamespace(problem_type=None)
    mine = classification_losses(logits, batch["labels"], config, 0.0)
    assert mine.shape == (N,)
    assert mine.tolist() == pytest.approx([alone(model, e) for e in examples], abs=1e-5)


def test_regression_on_several_numbers() -> None:
    logits, labels = torch.randn(4, 3), torch.randn(4, 3)
    config = SimpleNamespace(problem_type="regression")
    expected = ((logits - labels) ** 2).mean(1)
    torch.testing.assert_close(classification_losses(logits, labels, config, 0.0), expected)


def test_smoothing_of_what_has_no_classes_is_refused() -> None:
    config = SimpleNamespace(problem_type=None)
    with pytest.raises(ArgumentError, match="has no meaning for regression"):
        classification_losses(torch.randn(4, 1), torch.randn(4), config, 0.1)


def test_logits_that_do_not_belong_to_the_labels_are_refused() -> None:
    with pytest.raises(LossError, match="override per_example_loss"):
        token_losses(torch.randn(2, 6, 7), torch.zeros(2, 5).long(), 0.0, mean=True)


# ------------------------------------------------------------- what the losses are divided by


def a_draw(indices: list[int], p: Tensor, *, uniform: bool = False) -> Draw:
    """At k = 1."""
    chosen = torch.tensor(indices)
    inverse = (1 / (len(p) * p))[chosen]
    return Draw(0, chosen, inverse, p[chosen], p[chosen], len(p), uniform=uniform)


def drawn(draw: Draw) -> Drawn:
    return Drawn(draw, len(draw), draw.uniform)


@pytest.mark.parametrize("normalise", ["tokens", "sequences"])
@pytest.mark.parametrize("split", [[2], [1, 1]])
def test_at_k_1_the_expected_step_is_that_of_all_examples(
    split: list[int], normalise: str, tmp_path: Path
) -> None:
    """All pairs that can be drawn, in one batch or in two of one update, by enumeration."""
    n, p = 4, torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    texts, model = Texts(n, empty=2), llama().double()
    made = trainer(model, tmp_path, texts, importance=HISTORY, normalise=normalise)

    def gradient(loss: Tensor) -> Tensor:
        model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        return torch.cat([each.grad.flatten() for each in model.parameters()])

    def step(pair: tuple[int, ...]) -> Tensor:
        parts = [list(pair)] if split == [2] else [[i] for i in pair]
        draws = [a_draw(part, p) for part in parts]
        made._tokens.load_state_dict([float(sum(counts)), float(n)])
        waiting: dict[int, Draw] = {}
        sampler = SimpleNamespace(outstanding=waiting, by_index=True, sharded=False, ranks=Ranks())
        made.loader = SimpleNamespace(last_draw=None, _sampler=sampler)

        def batches() -> Iterator[Any]:
            for part, draw in zip(parts, draws, strict=True):
                made.loader.last_draw = waiting[draw.number] = draw
                yield {**pad([texts[i] for i in part]), "salience_slot": draw.indices}

        total = torch.zeros((), dtype=torch.float64)
        for batch, draw in zip(made.get_batch_samples(batches(), 2, "cpu")[0], draws, strict=True):
            made.loader.mean = lambda each, _, by, w=draw.weights: weighted_mean(each, w, by)
            total = total + made.compute_loss(model, batch)
        return gradient(total)

    whole = pad([texts[i] for i in range(n)])
    counts = whole["labels"][:, 1:].ne(-100).sum(1).tolist()
    assert len(set(counts)) > 2
    pairs = list(product(range(n), repeat=2))
    expected = sum(p[i] * p[j] * step((i, j)) for i, j in pairs)
    outputs = model(whole["input_ids"], attention_mask=whole["attention_mask"])
    each = token_losses(outputs.logits, whole["labels"], 0.0, mean=normalise == "sequences")
    torch.testing.assert_close(
        expected, gradient(each.sum() / (sum(counts) if normalise == "tokens" else n))
    )


def test_the_mean_number_of_tokens_is_that_of_the_dataset() -> None:
    """Each text comes in proportion to p: weighed by 1 / (n p), they count equally."""
    p = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    tokens, counts = MeanTokens(), torch.tensor([2, 3, 5, 10])
    every = [0] + [1] * 2 + [2] * 3 + [3] * 4
    for i in every:
        tokens.items([drawn(a_draw([i], p))], [counts[[i]]])
    last = drawn(a_draw([3, 3], p))
    assert float(tokens.items([last], [counts[[3, 3]]])) == pytest.approx(2 * 5)


def test_uniform_draws_count_their_own_tokens() -> None:
    p = torch.full((4,), 0.25, dtype=torch.float64)
    tokens, counts = MeanTokens(), torch.tensor([2, 3, 5, 10])
    for pair in ([0, 1], [2, 3], [1, 3]):
        draw = drawn(a_draw(pair, p, uniform=True))
        assert float(tokens.items([draw], [counts[pair]])) == counts[pair].sum()


@pytest.mark.parametrize("uniform", [False, True])
def test_the_tokens_of_all_processes_are_those_of_one(uniform: bool) -> None:
    """Five texts on two processes: one of them has a text twice, which counts for nothing."""
    p = torch.arange(1, 8, dtype=torch.float64) / 28
    whole = a_draw([6, 2, 3, 0, 5], p, uniform=uniform)
    counts = torch.tensor([2, 3, 5, 10, 4, 9, 7])
    parts = [Drawn(rows_of(whole, Ranks(rank, 2)), 5, uniform) for rank in range(2)]
    assert [len(part.draw) for part in parts] == [3, 3]
    own = [counts[part.draw.indices] for part in parts]
    total = sum(_sums(part, each) for part, each in zip(parts, own, strict=True))
    one, two = MeanTokens(), MeanTokens()
    for _ in range(2):
        expected = one.items([drawn(whole)], [counts[whole.indices]])
        found = two.items([parts[1]], [own[1]], lambda _: total)
        assert float(found) == pytest.approx(float(expected), rel=1e-12)
    assert two.state_dict() == pytest.approx(one.state_dict(), rel=1e-12)


def test_the_mean_number_of_tokens_is_saved() -> None:
    p = torch.full((4,), 0.25, dtype=torch.float64)
    tokens, again = MeanTokens(), MeanTokens()
    again.load_state_dict(tokens.state_dict())
    tokens.items([drawn(a_draw([0, 1], p))], [torch.tensor([2, 3])])
    again.load_state_dict(tokens.state_dict())
    last = drawn(a_draw([3, 3], p)), torch.tensor([10, 10])
    assert float(again.items([last[0]], [last[1]])) == 5.0
    assert float(again.items([last[0]], [last[1]])) == 12.5


@pytest.mark.parametrize("normalise", ["tokens", "sequences"])
def test_no_labels_at_all(normalise: str, tmp_path: Path) -> None:
    options = {"importance": HISTORY, "normalise": normalise, "logging_nan_inf_filter": False}
    made = trainer(gpt2(), tmp_path, NoLabels(), **options)
    made.train()
    assert losses(made) == [0.0] * len(losses(made))
    assert all(each.isfinite().all() for each in made.model.parameters())


class NoLabels(Texts):
    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"input_ids": self.texts[i], "labels": torch.full_like(self.texts[i], -100)}


def test_sequences_weigh_equally(tmp_path: Path) -> None:
    made = trainer(
        llama(),
        tmp_path,
        Texts(),
        importance={"score": "uniform"},
        normalise="sequences",
        per_device_train_batch_size=N,
        num_train_epochs=1,
        learning_rate=0.0,
    )
    model, texts = made.model, Texts()
    examples = [texts[i] for i in range(N)]
    means = [alone(model, e) if i != texts.empty else 0.0 for i, e in enumerate(examples)]
    made.train()
    assert losses(made) == pytest.approx([sum(means) / N], abs=1e-5)
    assert made.loader.metrics()["mean_loss"] == pytest.approx(sum(means) / N, abs=1e-5)


def test_merged_draws_of_a_pool_count_as_often_as_they_were_drawn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Accumulated, the divisor of each batch goes with its number of rows."""
    made = trainer(
        gpt2_classifier(),
        tmp_path,
        Sentences(),
        importance={"score": "loss", "draw": "multinomial", "smoothing": 0.01},
        gradient_accumulation_steps=4,
    )
    original, seen = made.get_batch_samples, list[Any]()

    def noted(*args: Any) -> Any:
        batches, items = original(*args)
        seen.extend(
            (len(b["salience_slot"]), float(b["salience_divisor"]), len(batches)) for b in batches
        )
        return batches, items

    monkeypatch.setattr(made, "get_batch_samples", noted)
    made.train()
    assert {rows for rows, _, _ in seen} > {BATCH}
    for rows, divisor, batches in seen:
        assert divisor == pytest.approx(BATCH * batches * rows / BATCH)


# ---------------------------------------------------------------------------- other tasks


class Tagger(ImportanceMixin, Trainer):
    """One class per token."""

    def per_example_loss(self, outputs: Any, labels: Tensor) -> Tensor:
        each = F.cross_entropy(outputs["logits"].transpose(1, 2), labels, reduction="none")
        return each.sum(1) / labels.ne(-100).sum(1).clamp(min=1)


def test_a_loss_of_ones_own(tmp_path: Path) -> None:
    class Tags(Texts):
        def __getitem__(self, i: int) -> dict[str, Any]:
            return {"input_ids": self.texts[i], "labels": self.texts[i] % 3}

    model = GPT2ForTokenClassification(gpt2_config(num_labels=3))
    made = trainer(model, tmp_path, Tags(), kind=Tagger, importance=HISTORY)
    assert made.normalise == "sequences"
    made.train()
    assert losses(made)[-1] < losses(made)[0]


@pytest.mark.parametrize(
    "model",
    [
        lambda: GPT2ForTokenClassification(gpt2_config()),
        lambda: T5ForConditionalGeneration(
            T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, vocab_size=32)
        ),
        lambda: BartForCausalLM(
            BartConfig(
                d_model=8,
                decoder_layers=1,
                encoder_layers=1,
                decoder_attention_heads=2,
                decoder_ffn_dim=8,
                vocab_size=32,
            )
        ),
        lambda: nn.Linear(2, 2),
        Watched,
    ],
)
def test_tasks_whose_loss_is_not_known_are_refused(model: Any, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"override per_example_loss\(outputs, labels\)"):
        trainer(model(), tmp_path, Texts())


def test_a_causal_model_with_a_loss_function_of_its_own_is_refused(tmp_path: Path) -> None:
    model = llama()
    model.loss_function = lambda **_: torch.zeros(())
    with pytest.raises(ArgumentError, match="override per_example_loss"):
        trainer(model, tmp_path, Texts())


def test_a_loss_of_no_single_example_is_refused(tmp_path: Path) -> None:
    config = MixtralConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=8,
        num_local_experts=2,
        output_router_logits=True,
        **SIZES,
    )
    with pytest.raises(UsageError, match="aux_loss, which belongs to no single example"):
        trainer(MixtralForCausalLM(config), tmp_path, Texts()).train()


# --------------------------------------------------------------------------------- refused


def test_unknown_arguments_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(
        ArgumentError, match="importance has no 'scores', 'num_workers': it takes score, k,"
    ):
        trainer(Classifier(), tmp_path, importance={"scores": "auto", "num_workers": 2})


@pytest.mark.parametrize("taken", ["model", "loss", "dataset", "batch_size", "slots"])
def test_what_the_trainer_gives_is_refused(taken: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=f"importance has no '{taken}'"):
        trainer(Classifier(), tmp_path, importance={taken: None})


def test_arguments_of_the_loader_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="k must"):
        trainer(Classifier(), tmp_path, importance={"k": 2}).train()


@pytest.mark.parametrize("normalise", ["token", "tokens"])
def test_a_classification_has_no_tokens(normalise: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="normalise"):
        trainer(Classifier(), tmp_path, normalise=normalise)


def test_a_loss_function_is_refused(tmp_path: Path) -> None:
    def kind(*args: Any, **options: Any) -> Any:
        return type("T", (ImportanceMixin, Trainer), {})(
            *args, **options, compute_loss_func=lambda *_, **__: 0
        )

    with pytest.raises(ArgumentError, match="override per_example_loss"):
        trainer(Classifier(), tmp_path, kind=kind)


def test_another_order_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="train_sampling_strategy='group_by_length'"):
        trainer(Classifier(), tmp_path, train_sampling_strategy="group_by_length")


def test_several_devices_of_one_process_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kind = type(trainer(Classifier(), tmp_path).args)
    monkeypatch.setattr(kind, "n_gpu", property(lambda _: 2))
    with pytest.raises(ArgumentError, match=r"2 devices .*torchrun"):
        trainer(Classifier(), tmp_path)


def test_tokens_of_each_process_alone_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kind = type(trainer(Classifier(), tmp_path).args)
    monkeypatch.setattr(kind, "world_size", property(lambda _: 2))
    alone = {"average_tokens_across_devices": False}
    with pytest.raises(ArgumentError, match="leave it at True"):
        trainer(gpt2(), tmp_path, Texts(), **alone)
    trainer(gpt2(), tmp_path, Texts(), normalise="sequences", **alone)
    trainer(gpt2(), tmp_path, Texts())


def test_a_stream_is_refused(tmp_path: Path) -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(Texts())

    with pytest.raises(ArgumentError, match="must have a length and be read by index"):
        trainer(gpt2(), tmp_path, Stream(), max_steps=3).train()


def test_batches_of_another_loader_are_refused(tmp_path: Path) -> None:
    class Own(ImportanceMixin, Trainer):
        def get_train_dataloader(self) -> Any:
            return Trainer.get_train_dataloader(self)

        def get_batch_samples(self, *args: Any) -> Any:
            return Trainer.get_batch_samples(self, *args)

    with pytest.raises(UsageError, match="came without 'salience_slot'"):
        trainer(Classifier(), tmp_path, kind=Own).train()


def test_batches_without_labels_are_refused(tmp_path: Path) -> None:
    class Unlabelled(Texts):
        def __getitem__(self, i: int) -> dict[str, Any]:
            return {"input_ids": torch.zeros(3).long() + i + 1}

    def kind(*args: Any, **options: Any) -> Any:
        return type("T", (ImportanceMixin, Trainer), {})(
            *args, **{**options, "data_collator": None}
        )

    for normalise in ("tokens", "sequences"):
        with pytest.raises(UsageError, match="a training batch has no 'labels'"):
            trainer(gpt2(), tmp_path, Unlabelled(), kind=kind, normalise=normalise).train()


def test_the_number_of_updates(tmp_path: Path) -> None:
    made = trainer(
        Classifier(),
        tmp_path,
        gradient_accumulation_steps=4,
        importance={"score": "history", "steps_per_epoch": 9},
    )
    made.train()
    assert made.state.global_step == EPOCHS * 3
    assert len(made.model.seen) == EPOCHS * 9
