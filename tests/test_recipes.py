"""The lines of docs/recipes.md: what they step on, and what they record.

Each block of the page is run as it stands, twice. With ``uniform`` every step must equal that of
the stock criterion. With ``history`` it must equal the weighted formula written out by hand, and
the scores must be the losses of the examples, one by one.
"""

import copy
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from parts import frozen
from salience import ImportanceLoader, LossError, functional
from salience.compare.digits import digits

PAGE = Path(__file__).parent.parent / "docs" / "recipes.md"
N = 150  # batches of 64 and of 16 leave a short one

# What stock code steps on, where it would be the same under uniform draws.
PLAIN = "F.cross_entropy(model(x), y)"
STOCK = {
    "Dict and nested batches": 'F.cross_entropy(model(batch["input"]["pixels"]), batch["label"])',
    "Several inputs and outputs": "F.cross_entropy(heads(top, bottom)[0], digit)"
    " + 0.5 * F.mse_loss(heads(top, bottom)[1], ink)",
    "Regression": "F.mse_loss(regressor(x)[:, 0], y)",
    "Multi-label": "F.binary_cross_entropy_with_logits(tagger(x), y)",
    "Segmentation": "F.cross_entropy(segmenter(x), mask, ignore_index=255)",
    "Segmentation 2": "torch.stack([F.cross_entropy(segmenter(a[None]), m[None], ignore_index=255)"
    " for a, m in zip(x, mask)]).mean()",
    "Sequence to sequence with padding": "F.cross_entropy("
    "speller(x, target).flatten(0, 1), target.flatten(), ignore_index=-100)",
    "Class weights": "F.cross_entropy(model(x), y, weight=class_weights)",
    "Label smoothing": "F.cross_entropy(model(x), y, label_smoothing=0.1) - floor",
    "Mixup": "share * F.cross_entropy(model(share * x + (1 - share) * x[partner]), y) + (1 - share)"
    " * F.cross_entropy(model(share * x + (1 - share) * x[partner]), y[partner])",
    "Gradient clipping": PLAIN,
    "OneCycle": PLAIN,
    "AMP with GradScaler": "F.cross_entropy(logits.float(), y)",
    "torch.compile": PLAIN,
    "Gradient accumulation": PLAIN,
    "Gradient accumulation 2": "F.cross_entropy(model(x), y, reduction='sum') / examples",
    "Validation": PLAIN,
    "EMA": PLAIN,
}
# What the score of one example should be: its loss alone, without the others of the batch.
ONE = "F.cross_entropy(model(x[i : i + 1]), y[i : i + 1])"
RECORDED = {
    "Dict and nested batches": 'F.cross_entropy(model(batch["input"]["pixels"][i][None]),'
    ' batch["label"][i][None])',
    "Several inputs and outputs": "F.cross_entropy(logits[i], digit[i])"
    " + 0.5 * (guess[i] - ink[i]) ** 2",
    "Regression": "(regressor(x[i : i + 1])[0, 0] - y[i]) ** 2",
    "Multi-label": "-(y[i] * F.logsigmoid(tagger(x)[i])"
    " + (1 - y[i]) * F.logsigmoid(-tagger(x)[i])).mean()",
    "Segmentation": "-sum(row[mask[i, r, c], r, c] for row in [segmenter(x).log_softmax(1)[i]]"
    " for r in range(8) for c in range(8) if mask[i, r, c] != 255)",
    "Segmentation 2": "F.cross_entropy(segmenter(x[i : i + 1]), mask[i : i + 1], ignore_index=255)",
    "Sequence to sequence with padding": "-sum("
    "row[t, letter] for row in [speller(x, target).log_softmax(2)[i]]"
    " for t, letter in enumerate(target[i].tolist()) if letter != -100)",
    "Class weights": "class_weights[y[i]] * F.cross_entropy(model(x[i : i + 1])[0], y[i])",
    "Label smoothing": "0.9 * F.cross_entropy(model(x)[i], y[i])"
    " - 0.1 * model(x)[i].log_softmax(0).mean() - floor",
    "Mixup": "share * F.cross_entropy(logits[i], y[i])"
    " + (1 - share) * F.cross_entropy(logits[i], y[partner[i]])",
    "AMP with GradScaler": "F.cross_entropy(logits[i].float(), y[i])",
}


def sections() -> dict[str, str]:
    """The code of each heading; a second block of the same heading gets a 2."""
    found: dict[str, str] = {}
    text = PAGE.read_text("utf-8")
    for title, body in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", text, re.M | re.S):
        for i, block in enumerate(re.findall(r"^```python\n(.*?)^```", body, re.M | re.S)):
            found[title if i == 0 else f"{title} {i + 1}"] = block
    return found


SECTIONS = sections()
BEFORE = {"Segmentation 2": "Segmentation"}  # blocks that go on from another


def test_every_block_has_its_formula() -> None:
    assert {*SECTIONS} == {*STOCK}
    assert {*RECORDED} <= {*STOCK}


class Watched:
    """Stands in for ``ImportanceLoader`` in the code of a page, and checks every ``mean``."""

    def __init__(self, score: str, title: str, patch: pytest.MonkeyPatch) -> None:
        self.score, self.title, self.steps = score, title, 0
        self.names: dict[str, Any] = {}
        self.values: list[Tensor] = []
        self.drawn: dict[int, tuple[Tensor, Tensor]] = {}  # index and weight by slot
        self.sizes: set[int] = set()
        make, mean, hand_out = (
            getattr(ImportanceLoader, name) for name in ("__init__", "mean", "_hand_out")
        )

        def made(loader: ImportanceLoader, *args: Any, **options: Any) -> None:
            make(loader, *args, **{**options, "score": score, "k": 1})
            # Scores are known and differ from the start, so that weights do.
            losses = torch.rand(N, generator=torch.Generator().manual_seed(0)) * 2 + 0.01
            loader._sampler.update(torch.arange(N), losses)

        def handed_out(loader: ImportanceLoader, batch: Any) -> Any:
            batch = hand_out(loader, batch)
            if loader._slots:
                rows = zip(loader.indices, loader.weights, strict=True)
                self.drawn |= dict(zip(batch[-1].tolist(), rows, strict=True))
            return batch

        def weighed(loader: ImportanceLoader, losses: Tensor, *args: Any, **options: Any) -> Tensor:
            value = mean(loader, losses, *args, **options)
            if self.names:
                self.check(loader, losses, value, *args, **options)
            return value

        patch.setattr(ImportanceLoader, "__init__", made)
        patch.setattr(ImportanceLoader, "_hand_out", handed_out)
        patch.setattr(ImportanceLoader, "mean", weighed)

    def parameters(self) -> list[Tensor]:
        modules = [each for each in self.names.values() if isinstance(each, nn.Module)]
        return [p for module in modules for p in module.parameters()]

    def check(
        self,
        loader: ImportanceLoader,
        losses: Tensor,
        value: Tensor,
        slots: Tensor | None = None,
        divisor: Any = None,
    ) -> None:
        self.steps += 1
        self.sizes.add(len(losses))
        self.values.append(value.detach())
        if self.score == "uniform":
            stock = eval(STOCK[self.title], self.names)
            assert_close(value, stock)
            for ours, theirs in zip(self.grads(value), self.grads(stock), strict=True):
                assert (ours is None) == (theirs is None)
                if ours is not None:
                    assert_close(ours, theirs)
            return
        indices, weights = loader.indices, loader.weights
        if slots is not None:
            drawn = [self.drawn[slot] for slot in slots.tolist()]
            indices, weights = (torch.stack(column) for column in zip(*drawn, strict=True))
        meant, each = RECORDED.get(self.title, ONE), range(len(losses))
        rows = torch.stack([eval(meant, {**self.names, "i": i}) for i in each]).detach()
        assert float(weights.max() / weights.min()) > 1.2
        assert_close(value, (weights * rows).sum() / (len(rows) if divisor is None else divisor))
        for index in indices.unique():  # of an example that came twice, the mean is recorded
            assert_close(loader.scores(index[None])[0], rows[indices == index].mean())

    def grads(self, value: Tensor) -> tuple[Tensor | None, ...]:
        return torch.autograd.grad(value, self.parameters(), retain_graph=True, allow_unused=True)


def assert_close(found: Tensor, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-6)


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    images, classes = (part[torch.arange(N) * 9] for part in digits(train=True).tensors)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    dataset = TensorDataset(images, classes)
    return {
        "torch": torch,
        "nn": nn,
        "F": F,
        "DataLoader": DataLoader,
        "TensorDataset": TensorDataset,
        "ImportanceLoader": ImportanceLoader,
        "images": images,
        "classes": classes,
        "dataset": dataset,
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), lr=0.01),
    }


@pytest.fixture(autouse=True)
def _without_a_c_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda fn: compile_(fn, backend="eager"))
    yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it compiles
@pytest.mark.parametrize("score", ["uniform", "history"])
@pytest.mark.parametrize("title", [*SECTIONS])
def test_the_lines_of_the_page(
    title: str, score: str, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(score, title, monkeypatch)
    names["loader"] = ImportanceLoader(names["dataset"], 64)
    if title in BEFORE:
        exec(SECTIONS[BEFORE[title]], names)
    watched.names = names
    exec(compile(SECTIONS[title], title, "exec"), names)
    assert watched.steps >= 3
    assert len(watched.sizes) == 2 or score == "history"  # a short batch was among them


# ------------------------------------------------------------------- whole runs, written by hand


def run(title: str, names: dict[str, Any], **options: Any) -> nn.Module:
    """The model after the lines of the page."""
    torch.manual_seed(1)
    names["loader"] = ImportanceLoader(names["dataset"], options.pop("batch_size", 64), **options)
    exec(compile(SECTIONS[title], title, "exec"), names)
    return names["model"]


class ByHand:
    """The same run with the weights written out; ``mean`` only records."""

    def __init__(self, names: dict[str, Any], batch_size: int = 64, **options: Any) -> None:
        self.model = copy.deepcopy(names["model"])
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.loader = ImportanceLoader(names["dataset"], batch_size, **options)

    def losses(self) -> Iterator[Tensor]:
        """(1/B) sum_i alpha_i L_i of one batch after the other."""
        for x, y in self.loader:
            weights = self.loader.weights
            losses = F.cross_entropy(self.model(x), y, reduction="none")
            self.loader.mean(losses.detach())
            yield (weights * losses).sum() / len(y)

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def assert_same(self, model: nn.Module) -> None:
        for ours, theirs in zip(model.parameters(), self.model.parameters(), strict=True):
            assert_close(ours, theirs)


def updates(optimizer: torch.optim.Optimizer) -> int:
    (steps,) = {int(state["step"]) for state in optimizer.state.values()}
    return steps


@pytest.mark.parametrize("score", ["uniform", "history", "auto"])
def test_clipping_is_of_the_weighted_gradient(
    score: str, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it Adam would hardly notice: here the gradients of two steps differ in scale."""
    code = SECTIONS["Gradient clipping"].replace("max_norm=1.0", "max_norm=0.1")
    monkeypatch.setitem(SECTIONS, "Clipped", code)
    names["optimizer"] = torch.optim.SGD(names["model"].parameters(), lr=1.0)
    hand = ByHand(names, score=score)
    hand.optimizer = torch.optim.SGD(hand.model.parameters(), lr=1.0)
    for loss in hand.losses():
        loss.backward()
        norm = math.sqrt(sum(float((p.grad**2).sum()) for p in hand.model.parameters()))
        assert norm > 0.1  # so that there is something to clip
        for p in hand.model.parameters():
            p.grad *= 0.1 / norm
        hand.step()
    hand.assert_same(run("Clipped", names, score=score))


def test_one_cycle_ends_where_it_ends_with_a_data_loader(names: dict[str, Any]) -> None:
    hand, batches = ByHand(names, score="history"), DataLoader(names["dataset"], 64)
    total = 2 * len(batches)
    schedule = torch.optim.lr_scheduler.OneCycleLR(hand.optimizer, max_lr=0.01, total_steps=total)
    for _ in range(2):
        for loss in hand.losses():
            loss.backward()
            hand.step()
            schedule.step()
    hand.assert_same(run("OneCycle", names, score="history"))
    assert names["schedule"].last_epoch == total
    with pytest.raises(ValueError, match="Tried to step"):  # not one step is left
        names["schedule"].step()


def scaled(enabled: bool) -> str:
    """The block of AMP on the CPU, with its scaler at work."""
    return SECTIONS["AMP with GradScaler"].replace(
        "enabled=half == torch.float16", f"enabled={enabled}, init_scale=1024.0"
    )


def test_a_scaler_changes_neither_steps_nor_scores(
    names: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = []
    start = names["model"]
    for enabled in (False, True):
        names["model"] = copy.deepcopy(start)
        names["optimizer"] = torch.optim.Adam(names["model"].parameters(), lr=0.01)
        monkeypatch.setitem(SECTIONS, "AMP", scaled(enabled))
        run("AMP", names, score="history", k=1)
        parameters = [p.detach() for p in names["model"].parameters()]
        assert names["losses"].dtype == torch.float32
        assert names["logits"].dtype == torch.bfloat16
        assert names["scaler"].get_scale() == (1024 if enabled else 1)
        ends.append(frozen([parameters, names["loader"].scores()]))  # 1024 is a power of two
    assert ends[0] == ends[1]


class Overflows(nn.Module):
    """In the second batch one output is infinite."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.calls = inner, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        out: Tensor = self.inner(x)
        return torch.cat([out[:1] * math.inf, out[1:]]) if self.calls == 2 else out


def test_an_overflow_with_skip_is_the_scalers_business(
    names: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SECTIONS, "AMP", scaled(True))
    inner, names["model"] = names["model"], Overflows(names["model"])
    with pytest.raises(LossError, match=r"at step 2 example .* nan"):
        run("AMP", names, score="history")
    before = updates(names["optimizer"])
    names["model"] = Overflows(inner)
    run("AMP", names, score="history", on_bad_loss="skip")
    assert names["model"].calls == 3
    assert updates(names["optimizer"]) == before + 2
    assert names["scaler"].get_scale() == 512  # halved once
    assert all(p.isfinite().all() for p in names["model"].parameters())
    assert names["loader"].metrics()["skipped_losses"] == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_losses_are_averaged_in_float32(
    dtype: torch.dtype, names: dict[str, Any]
) -> None:
    """A mean over tokens was rounded to the precision of the losses."""
    loader = ImportanceLoader(names["dataset"], 64, score="history")
    batches = iter(loader)
    next(batches)
    losses = torch.rand(64, 50).to(dtype)
    value = loader.mean(losses)
    assert value.dtype == torch.float32
    assert_close(value, (loader.weights * losses.float().mean(1)).mean())
    torch.testing.assert_close(loader.scores(loader.indices), losses.float().mean(1))


def test_mean_within_autocast_is_not_rounded(loader: ImportanceLoader) -> None:
    losses, values = torch.rand(64), []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            values.append(loader.mean(losses))
    assert torch.equal(*values)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it compiles
def test_a_compiled_model_is_trained_the_same(names: dict[str, Any]) -> None:
    hand = ByHand(names, score="history")
    for loss in hand.losses():
        loss.backward()
        hand.step()
    hand.assert_same(run("torch.compile", names, score="history"))


@pytest.mark.parametrize("score", ["uniform", "history"])
def test_accumulation_with_a_remainder(score: str, names: dict[str, Any]) -> None:
    hand = ByHand(names, 16, score=score)
    for i, loss in enumerate(hand.losses()):
        (loss / (4 if i < 8 else 2)).backward()  # groups of 4, 4 and 2
        if i in (3, 7, 9):
            hand.step()
    assert i == 9
    hand.assert_same(run("Gradient accumulation", names, batch_size=16, score=score))
    assert updates(names["optimizer"]) == 3


def test_a_group_fetched_ahead_is_one_large_batch(names: dict[str, Any]) -> None:
    """Stock code on the examples of each group, the short one among them."""
    model = copy.deepcopy(names["model"])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = ImportanceLoader(names["dataset"], 16, score="uniform")
    indices = []
    for _, y in loader:
        indices.append(loader.indices)
        loader.mean(torch.ones(len(y)))
    for group in (indices[:4], indices[4:8], indices[8:]):
        x, y = names["dataset"][torch.cat(group)]
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    exec(
        SECTIONS["Gradient accumulation 2"].replace("slots=True", 'slots=True, score="uniform"'),
        names,
    )
    for ours, theirs in zip(names["model"].parameters(), model.parameters(), strict=True):
        assert_close(ours, theirs)
    assert names["loader"].epoch == 1
    assert updates(names["optimizer"]) == 3


def test_validation_in_the_middle_changes_no_draw(names: dict[str, Any]) -> None:
    validation, ends = DataLoader(names["dataset"], 50), []
    for validate in (False, True):
        model, drawn = names["model"], []
        loader = ImportanceLoader(names["dataset"], 64, score="history")
        for x, y in loader:
            drawn.append(loader.indices)
            if validate:
                with torch.no_grad():
                    assert sum(len(model(seen)) for seen, _ in validation) == N
            loader.mean(F.cross_entropy(model(x), y, reduction="none"))
        ends.append(frozen([drawn, loader.state_dict()]))
    assert ends[0] == ends[1]


def test_ema_follows_the_parameters_and_leaves_the_loader_alone(names: dict[str, Any]) -> None:
    names["model"] = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)
    )
    names["optimizer"] = torch.optim.Adam(names["model"].parameters(), lr=0.01)
    hand, average = ByHand(names, score="history"), []
    for loss in hand.losses():
        loss.backward()
        hand.step()
        now = [p.detach().clone() for p in hand.model.parameters()]
        pairs = zip(average, now, strict=True)
        average = [0.99 * a + 0.01 * p for a, p in pairs] if average else now
    hand.assert_same(run("EMA", names, score="history"))
    ema = names["ema"].module
    for ours, theirs in zip(ema.parameters(), average, strict=True):
        assert_close(ours, theirs)
    hidden = ema[1](names["images"].flatten(1)).detach()
    # The mean over batches of 64, 64 and 22, as update_bn takes it.
    means = torch.stack([part.mean(0) for part in hidden.split(64)]).mean(0)
    assert_close(ema[2].running_mean, means)
    assert frozen(names["loader"].state_dict()) == frozen(hand.loader.state_dict())


# -------------------------------------------------------------------------------- what is claimed


def expectation(p: Tensor, terms: Tensor) -> Tensor:
    """Of alpha_i terms_i with k = 1, for i drawn from p."""
    return (p * functional.weights(p, k=1) * terms).sum()


def test_a_constant_divisor_is_exact_in_expectation() -> None:
    """Sums over tokens, divided by the mean number of tokens of the dataset."""
    tokens = torch.arange(1.0, 10.0).double()
    sums = torch.rand(9).double() * tokens
    p = functional.probabilities(functional.smooth(sums, 0.5))
    assert_close(expectation(p, sums) / tokens.mean(), sums.sum() / tokens.sum())
    drawn = (p * tokens).sum()  # the mean number of tokens of drawn examples
    assert float(drawn / tokens.mean()) > 1.05


def test_partners_of_mixup_from_a_shuffled_loader_are_exact_in_expectation() -> None:
    pairs = torch.rand(7, 7).double() * torch.arange(1, 8)[:, None] * torch.arange(1, 8)
    p = functional.probabilities(functional.smooth(pairs.mean(1), 0.5))
    assert_close(expectation(p, pairs.mean(1)), pairs.mean())
    same_batch = expectation(p, (pairs * p).sum(1))
    assert float(same_batch) > 1.1 * float(pairs.mean())


def test_smoothed_losses_minus_their_floor_are_never_negative(names: dict[str, Any]) -> None:
    run("Label smoothing", names, score="uniform")
    best = names["label"].log().expand(10, 10).clone()
    for i in range(10):
        best[i, [0, i]] = best[i, [i, 0]]  # the minimum, for each class
    losses = F.cross_entropy(best, torch.arange(10), label_smoothing=0.1, reduction="none")
    assert 0 <= float((losses - names["floor"]).min()) < 2e-6
    # Under rounding too: many losses close to the minimum.
    near = best.repeat(1000, 1) + torch.randn(10_000, 10) * 1e-4
    losses = F.cross_entropy(near, torch.arange(10_000) % 10, label_smoothing=0.1, reduction="none")
    assert float((losses - names["floor"]).min()) >= 0


# -------------------------------------------------------- losses that belong to no single example


@pytest.fixture
def loader(names: dict[str, Any]) -> ImportanceLoader:
    """With a batch of 64 handed out, and weights that differ."""
    loader = ImportanceLoader(names["dataset"], 64, score="history", k=1)
    loader._sampler.update(torch.arange(N), torch.rand(N) + 0.1)
    next(iter(loader))
    return loader


def test_losses_of_the_whole_batch_are_refused(loader: ImportanceLoader) -> None:
    features = F.normalize(torch.randn(64, 8), dim=1)
    contrastive = F.cross_entropy(features @ features.T, torch.arange(64))
    generator = F.softplus(-torch.randn(64)).mean()
    for loss in (contrastive, generator):
        with pytest.raises(LossError, match="whole batch has cannot be weighed"):
            loader.mean(loss)
    two_views = torch.rand(128)  # of each example
    with pytest.raises(LossError, match=r"\[128\] for a batch of 64: .*flattened from \[64, 2\]"):
        loader.mean(two_views)
    assert loader._sampler.step == 1  # nothing was recorded
    assert loader.mean(two_views.view(2, 64).mean(0)) > 0


def test_a_matrix_of_pairs_cannot_be_told_from_tokens(loader: ImportanceLoader) -> None:
    """Similarities have negative means and are refused for that; squared distances are not."""
    features = torch.randn(64, 8)
    with pytest.raises(LossError, match="finite and >= 0"):
        loader.mean(-features @ features.T)
    pairs = torch.cdist(features, features) ** 2
    assert_close(loader.mean(pairs), (loader.weights * pairs.mean(1)).mean())


def test_ctc_has_a_loss_per_example() -> None:
    lengths = torch.arange(N) % 4 + 1
    targets, frames = torch.randint(1, 5, (N, 4)), torch.randn(N, 12, 5)
    stock = nn.CTCLoss()
    loader = ImportanceLoader(TensorDataset(frames, targets, lengths), 64, score="uniform")
    for x, y, n in loader:
        given = (x.transpose(0, 1).log_softmax(2), y, torch.full((len(n),), 12), n)
        with pytest.raises(LossError, match="single number"):
            loader.mean(stock(*given))
        losses = F.ctc_loss(*given, reduction="none")
        assert_close(loader.mean(losses / n.clamp(min=1)), stock(*given))


def test_a_gan_weighs_what_has_an_example(loader: ImportanceLoader) -> None:
    real, fake = torch.rand(64, requires_grad=True), torch.rand(64, requires_grad=True)
    (loader.mean(real) + fake.mean()).backward()
    assert_close(real.grad, loader.weights / 64)
    assert_close(fake.grad, torch.full((64,), 1 / 64))
