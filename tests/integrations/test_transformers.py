"""Trainer: the draws and weights of a plain loop, and the steps of the stock Trainer."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from harness import (
    BATCH,
    EPOCHS,
    MUTANTS,
    STEPS,
    Examples,
    N,
    Trace,
    Watched,
    assert_caught,
    assert_same,
    make_loader,
    matters,
    plain_loop,
    sgd,
    watch,
)
from torch import Tensor
from transformers_parts import (
    Classifier,
    Sentences,
    Texts,
    gpt2,
    gpt2_classifier,
    llama,
    losses,
    stock,
    texts_by_hand,
    trained,
    trainer,
)

from salience.errors import ArgumentError


def by_hand(
    monkeypatch: pytest.MonkeyPatch, *, accumulate: int = 1, workers: int = 0, **options: Any
) -> Trace:
    trace, model = watch(monkeypatch), Watched()
    plain_loop(
        make_loader(num_workers=workers, **options),
        model,
        sgd(model),
        ahead=accumulate,
        accumulate=accumulate,
        scale=lambda batches, _: 1 / len(batches),
    )
    return trace.finish(model)


def by_trainer(
    monkeypatch: pytest.MonkeyPatch,
    where: Path,
    *,
    accumulate: int = 1,
    workers: int = 0,
    **options: Any,
) -> Trace:
    trace = watch(monkeypatch)
    options = {
        "gradient_accumulation_steps": accumulate,
        "dataloader_num_workers": workers,
        **options,
    }
    return trained(trainer(Classifier(), where, **options), trace)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("accumulate", [1, 4])
def test_draws_weights_and_parameters_are_those_of_a_plain_loop(
    accumulate: int, workers: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = by_hand(monkeypatch, accumulate=accumulate, workers=workers)
    matters(expected)
    trace = by_trainer(monkeypatch, tmp_path, accumulate=accumulate, workers=workers)
    assert len(trace.ids) == EPOCHS * STEPS
    assert_same(trace, expected, tolerance=1e-6)


@pytest.mark.usefixtures("auto_turns_on")
def test_auto_turns_on_as_in_a_plain_loop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    labels = Examples().y
    expected = by_hand(monkeypatch, score="auto", labels=labels)
    matters(expected)
    trace = by_trainer(monkeypatch, tmp_path, importance={"labels": labels})
    assert_same(trace, expected, tolerance=1e-6)


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_caught(
    mutant: Callable[[pytest.MonkeyPatch], None],
    accumulate: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    expected = by_hand(monkeypatch, accumulate=accumulate)

    def run() -> Trace:
        return by_trainer(monkeypatch, tmp_path, accumulate=accumulate)

    assert_caught(mutant, run, expected, monkeypatch)


# ------------------------------------------------------------------- language models, by hand


def texts_by_trainer(
    monkeypatch: pytest.MonkeyPatch,
    where: Path,
    make: Callable[[], Any],
    normalise: str,
    accumulate: int,
    workers: int = 0,
) -> Trace:
    trace = watch(monkeypatch)
    options = {"gradient_accumulation_steps": accumulate, "dataloader_num_workers": workers}
    return trained(trainer(make(), where, Texts(), normalise=normalise, **options), trace)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("normalise", ["tokens", "sequences"])
@pytest.mark.parametrize("make", [gpt2, llama])
def test_a_language_model_by_importance_is_that_of_a_plain_loop(
    make: Callable[[], Any],
    normalise: str,
    accumulate: int,
    workers: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    options = (make, normalise, accumulate, workers)
    expected = texts_by_hand(monkeypatch, *options)
    matters(expected)
    assert_same(texts_by_trainer(monkeypatch, tmp_path, *options), expected, tolerance=1e-5)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_of_a_language_model_are_caught(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = (gpt2, "tokens", 4)
    expected = texts_by_hand(monkeypatch, *options)
    run = lambda: texts_by_trainer(monkeypatch, tmp_path, *options)  # noqa: E731
    assert_caught(mutant, run, expected, monkeypatch, tolerance=1e-5)


def test_the_seed_is_that_of_the_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    expected = by_hand(monkeypatch, seed=5).ids
    assert by_trainer(monkeypatch, tmp_path, data_seed=5).ids == expected
    assert by_trainer(monkeypatch, tmp_path, seed=5).ids == expected
    importance = {"score": "history", "seed": 5}
    assert by_trainer(monkeypatch, tmp_path, importance=importance).ids == expected
    assert by_trainer(monkeypatch, tmp_path).ids != expected


# -------------------------------------------------------------------- like the stock Trainer


def assert_like_stock(made: Any, twin: Any) -> None:
    made.train()
    twin.order = made.model.seen
    assert sorted(i for batch in twin.order[:STEPS] for i in batch) == list(range(N))
    assert {len(batch) for batch in twin.order} == {BATCH, N % BATCH}
    twin.train()
    assert made.state.global_step == twin.state.global_step
    assert losses(made) == pytest.approx(losses(twin), abs=1e-6, rel=1e-6)
    for mine, theirs in zip(made.model.parameters(), twin.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("make", [gpt2, llama])
def test_a_language_model_trains_as_with_the_stock_trainer(
    make: Callable[[], Any], accumulate: int, smoothing: float, tmp_path: Path
) -> None:
    texts = Texts()
    options = {"gradient_accumulation_steps": accumulate, "label_smoothing_factor": smoothing}
    made = trainer(make(), tmp_path, texts, importance={"score": "uniform"}, **options)
    assert made.normalise == "tokens"
    assert_like_stock(made, stock(make(), tmp_path, texts, [], **options))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("kind", "num_labels"), [("classes", 3), ("numbers", 1), ("sets", 3)])
@pytest.mark.filterwarnings("ignore:Label smoothing is not compatible with multi-label")
def test_a_classifier_trains_as_with_the_stock_trainer(
    kind: str, num_labels: int, smoothing: float, tmp_path: Path
) -> None:
    if smoothing and kind == "numbers":
        pytest.skip("refused")
    texts = Sentences(kind)
    options: dict[str, Any] = {"label_smoothing_factor": smoothing}
    problem = {"problem_type": "multi_label_classification"} if kind == "sets" else {}
    make = lambda: gpt2_classifier(num_labels, **problem)  # noqa: E731
    made = trainer(make(), tmp_path, texts, importance={"score": "uniform"}, **options)
    assert made.normalise == "sequences"
    assert_like_stock(made, stock(make(), tmp_path, texts, [], **options))


def test_an_accumulated_classifier_trains_as_a_stock_trainer_that_counts_examples(
    tmp_path: Path,
) -> None:
    """The model alone adds up the means of the batches: Trainer does not divide them."""

    def mean(outputs: Any, labels: Any, num_items_in_batch: Any) -> Any:
        return F.cross_entropy(outputs["logits"], labels, reduction="sum") / num_items_in_batch

    texts, options = Sentences(), {"gradient_accumulation_steps": 4}
    made = trainer(gpt2_classifier(), tmp_path, texts, importance={"score": "uniform"}, **options)
    twin = stock(gpt2_classifier(), tmp_path, texts, [], compute_loss_func=mean, **options)
    assert_like_stock(made, twin)


def test_the_stock_trainer_adds_up_means_where_a_model_does_not_count(tmp_path: Path) -> None:
    """If this fails, it has been mended there, and the page about it is out of date."""
    texts, options = Sentences(), {"gradient_accumulation_steps": 4, "max_steps": 1}
    made = trainer(gpt2_classifier(), tmp_path, texts, importance={"score": "uniform"}, **options)
    made.train()
    twin = stock(gpt2_classifier(), tmp_path, texts, made.model.seen, **options)
    twin.train()
    assert losses(twin) == pytest.approx([4 * losses(made)[0]], rel=1e-5)


# ------------------------------------------------------------------------- what is left alone


def test_evaluation_changes_nothing_and_is_trainers_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = by_hand(monkeypatch)
    trace = watch(monkeypatch)
    made = trainer(
        Classifier(),
        tmp_path,
        eval_dataset=trainer(Classifier(), tmp_path).train_dataset,
        eval_strategy="steps",
        eval_steps=2,
        eval_on_start=True,
    )
    made.get_train_dataloader()
    next(iter(made.get_train_dataloader()))
    assert_same(trained(made, trace), expected, tolerance=1e-6)
    evaluated = [entry["eval_loss"] for entry in made.state.log_history if "eval_loss" in entry]
    assert len(evaluated) == 1 + EPOCHS * STEPS // 2
    examples = Examples()
    logits = made.model.net(examples.x[:, 1:])
    assert evaluated[-1] == pytest.approx(F.cross_entropy(logits, examples.y).item(), abs=1e-3)
    assert not any(
        key.startswith("importance/")
        for e in made.state.log_history
        if "eval_loss" in e
        for key in e
    )


def test_a_look_at_the_training_batches_in_mid_training_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = by_hand(monkeypatch)
    trace, made = watch(monkeypatch), trainer(Classifier(), tmp_path)
    original = made.training_step

    def looks(*args: Any) -> Any:
        next(iter(made.get_train_dataloader()))
        return original(*args)

    made.training_step = looks
    assert_same(trained(made, trace), expected, tolerance=1e-6)


def test_each_training_begins_anew(tmp_path: Path) -> None:
    made = trainer(Classifier(), tmp_path, importance={"score": "uniform"})
    made.train()
    made.train()
    assert made.model.seen[: EPOCHS * STEPS] == made.model.seen[EPOCHS * STEPS :]


def test_a_batch_that_does_not_fit_in_memory(tmp_path: Path) -> None:
    """Trainer begins again with a smaller one, and so does the sampler."""
    made = trainer(Classifier(), tmp_path, auto_find_batch_size=True)
    original = made.training_step

    def fails(model: Any, inputs: Any, *args: Any) -> Any:
        if len(inputs["x"]) > 3:
            raise RuntimeError("CUDA out of memory.")
        return original(model, inputs, *args)

    made.training_step = fails
    made.train()
    assert made.loader.batch_size == 3
    assert len(made.model.seen) == EPOCHS * 8


def test_metrics_are_logged_with_the_loss(tmp_path: Path) -> None:
    made = trainer(Classifier(), tmp_path, logging_steps=4)
    made.train()
    entries = [entry for entry in made.state.log_history if "loss" in entry]
    assert len(entries) == EPOCHS * STEPS // 4
    assert all(entry["importance/active"] == 1 for entry in entries)
    known = made.loader.metrics()
    assert entries[0]["importance/mean_loss"] > 0
    assert {f"importance/{key}" for key in known} == {k for k in entries[-1] if "/" in k}
    assert "importance/active" not in made.state.log_history[-1]  # the summary at the end


def test_numbers_that_are_not_known_are_not_logged(tmp_path: Path) -> None:
    made = trainer(Classifier(), tmp_path)
    made.get_train_dataloader()
    made.is_in_train = True
    made.get_train_dataloader()
    made.log({"loss": 1.0})
    assert "importance/tracking" not in made.state.log_history[-1]
    assert "importance/active" in made.state.log_history[-1]


def test_trainer_knows_the_number_of_examples(tmp_path: Path) -> None:
    made = trainer(Classifier(), tmp_path)
    view = made.get_train_dataloader()
    assert made.num_examples(view) == N
    assert len(view) == STEPS
    assert made.num_examples(made.get_eval_dataloader(Sentences())) == N


@pytest.mark.parametrize("keep", [True, False])
def test_columns_that_the_model_does_not_take(keep: bool, tmp_path: Path) -> None:
    made = trainer(Classifier(), tmp_path, remove_unused_columns=not keep, num_train_epochs=1)
    if keep:
        with pytest.raises(TypeError, match="comment"):
            made.train()
    else:
        assert set(next(iter(made.get_train_dataloader()))) == {"x", "labels", "salience_slot"}
        made.train()


def test_columns_of_a_datasets_dataset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    examples = Examples()
    columns = {"x": examples.x.tolist(), "label": examples.y.tolist(), "comment": ["a"] * N}
    expected = by_trainer(monkeypatch, tmp_path)
    trace = watch(monkeypatch)
    made = trainer(Classifier(), tmp_path, datasets.Dataset.from_dict(columns))
    assert_same(trained(made, trace), expected, tolerance=1e-5)


@pytest.mark.parametrize("score", ["loss", "upper_bound", "approx"])
def test_other_scores(score: str, tmp_path: Path) -> None:
    importance = {
        "score": score,
        **({"labels": [i % 3 for i in range(N)]} if score == "approx" else {}),
    }
    options = {"importance": importance, "gradient_accumulation_steps": 4}
    made = trainer(gpt2_classifier(), tmp_path, Sentences(), **options)
    made.train()
    assert made.state.global_step == EPOCHS * 2
    assert made.loader.metrics()["active"] == 1


def test_gradient_norms_of_transformers_are_refused(tmp_path: Path) -> None:
    made = trainer(gpt2_classifier(), tmp_path, Sentences(), importance={"score": "gnorm"})
    with pytest.raises(ArgumentError, match="no rule covers"):
        made.train()


def test_a_language_model_with_a_score_that_needs_it(tmp_path: Path) -> None:
    made = trainer(
        gpt2(), tmp_path, Texts(), importance={"score": "loss"}, gradient_accumulation_steps=4
    )
    made.train()
    assert made.state.global_step == EPOCHS * 2


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("score", ["history", "loss"])
def test_loaders_pickle(score: str, smoothing: float, tmp_path: Path) -> None:
    """After training, when Trainer itself does not; the view too."""
    options = {"importance": {"score": score}, "label_smoothing_factor": smoothing}
    made = trainer(gpt2_classifier(), tmp_path, Sentences(), **options)
    made.train()
    for copied in (lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy):
        twin = copied(made.loader)
        assert twin._model is not made.model or score == "history"
        for theirs, mine in zip(twin, made.loader, strict=True):
            assert theirs["input_ids"].tolist() == mine["input_ids"].tolist()
            for loader, batch in ((twin, theirs), (made.loader, mine)):
                loader.mean(batch["labels"].float() + 1, batch["salience_slot"])
    assert len([*copied(made.get_train_dataloader())]) == STEPS


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_bf16_compile_schedule_and_workers_together(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from torch._dynamo.utils import counters

    made = trainer(
        gpt2(),
        tmp_path,
        Texts(),
        optimizers=(None, None),
        gradient_accumulation_steps=4,
        bf16=True,
        torch_compile=True,
        torch_compile_backend="aot_eager",
        lr_scheduler_type="cosine",
        learning_rate=0.01,
        dataloader_num_workers=2,
    )
    counters.clear()
    kinds = set[Any]()

    @torch.compiler.disable
    def noted(_: Tensor) -> None:
        kinds.add(torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None)

    monkeypatch.setattr(made.model, "note", noted)
    made.train()
    assert counters["frames"]["ok"] > 0
    assert kinds == {torch.bfloat16}
    rates = [entry["learning_rate"] for entry in made.state.log_history if "loss" in entry]
    assert len(rates) == len(set(rates)) == EPOCHS * 2
    assert rates == sorted(rates, reverse=True)
    assert all(0 < loss < 10 for loss in losses(made))
    assert made.loader.metrics()["effective_sample_size"] < BATCH
