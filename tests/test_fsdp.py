"""FSDP2: the draws and parameters of one process; states in torch.distributed.checkpoint."""

import functools
import itertools
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from parts import auto_is, cross_entropy, force_auto, frozen, make_dataset, needs
from ranks import on_ranks
from salience import ArgumentError, ImportanceLoader, StateError, checkpoint

GLOBAL, STEPS = 12, 50


class Result(NamedTuple):
    rows: list[Any]
    parameters: list[Any]
    metrics: dict[str, float]


class Training:
    """One rank: the model sharded, replicated, or on its own."""

    def __init__(
        self, score: str = "auto", dtype: torch.dtype = torch.float64, how: str = "sharded"
    ) -> None:
        force_auto("focused", trust=True, every=7)
        torch.manual_seed(0)
        world = dist.get_world_size() if dist.is_initialized() else 1
        self.model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)
        self.wrapped: nn.Module = self.model
        if world > 1 and how == "sharded":
            for part in (self.model[0], self.model[2], self.model):
                fully_shard(part)
            assert all(isinstance(p, DTensor) for p in self.model.parameters())
        elif world > 1:
            self.wrapped = DistributedDataParallel(self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.02)
        x, y = make_dataset(250).tensors
        self.loader = ImportanceLoader(
            TensorDataset(x.to(dtype), y),
            GLOBAL // world,
            score=score,
            seed=5,
            **needs(score, self.model),
        )
        self.rows: list[Any] = []

    def go(self, steps: int) -> Result:
        while len(self.rows) < steps:
            for batch in self.loader:
                losses = cross_entropy(self.wrapped, batch)
                self.optimizer.zero_grad()
                self.loader.mean(losses).backward()
                self.optimizer.step()
                self.rows.append((self.loader.indices.tolist(), self.loader.weights.tolist()))
                if len(self.rows) == steps:
                    break
        metrics = self.loader.metrics()
        del metrics["scoring_fraction"]
        sampler = self.loader._sampler
        if sampler.score_name == "auto" and sampler.step > 30:  # it has seen all
            assert auto_is(sampler) == ("focused", True)
        return Result(self.rows, [whole(p) for p in self.model.parameters()], metrics)

    def state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "loader": checkpoint.Packed(self.loader)}

    def load(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )


def whole(p: torch.Tensor) -> Any:
    full = p.full_tensor() if isinstance(p, DTensor) else p
    return full.detach().numpy().copy()


def train(rank: int, *args: Any) -> Result:  # noqa: ARG001
    return Training(*args).go(STEPS)


def together(results: list[Result], step: int) -> list[int]:
    """The indices of all ranks in one step, without padding."""
    rows = [zip(*result.rows[step], strict=True) for result in results]
    return [index for index, weight in itertools.chain(*rows) if weight]


def check_same(one: Result, many: list[Result], tolerance: float, first: int = 0) -> None:
    assert len(many[0].rows) + first == len(one.rows)
    for step in range(len(many[0].rows)):
        assert together(many, step) == one.rows[step + first][0], step
    for result in many:
        assert result.metrics["mean_loss"] == pytest.approx(one.metrics["mean_loss"], rel=1e-6)
        for mine, theirs in zip(result.parameters, one.parameters, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=tolerance)


# ----------------------------------------------------------------------------------- one process


SHARDED = [
    *((score, torch.float64) for score in ("uniform", "history", "approx", "auto")),
    ("history", torch.float32),
]


def train_sharded(rank: int) -> list[Result]:
    return [train(rank, *case) for case in SHARDED]


@functools.cache
def sharded(world: int) -> list[list[Result]]:
    return on_ranks(world, train_sharded)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("case", range(len(SHARDED)), ids=lambda i: f"{SHARDED[i]}")
def test_sharded_models_see_the_draws_of_one_process(case: int, world: int) -> None:
    score, dtype = SHARDED[case]
    many = [results[case] for results in sharded(world)]
    check_same(train(0, score, dtype), many, 1e-12 if dtype == torch.float64 else 1e-6)
    if score == "auto":
        assert many[0].metrics["active"] == 1.0


# --------------------------------------------------------------------- scores that need the model


@pytest.mark.parametrize("score", ["loss", "upper_bound"])
def test_scores_that_need_the_model_are_those_of_a_replicated_one(score: str) -> None:
    sharded, replicated = on_ranks(2, compare, score)
    for mine, theirs in (sharded, replicated):
        assert mine.rows == theirs.rows
        assert any(len(set(weights)) > 1 for _, weights in mine.rows)  # by importance
        for a, b in zip(mine.parameters, theirs.parameters, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


def compare(rank: int, score: str) -> tuple[Result, Result]:
    how = [train(rank, score, torch.float64, how) for how in ("sharded", "replicated")]
    return how[0], how[1]


def test_gnorm_is_refused_with_what_to_use_instead() -> None:
    assert on_ranks(2, refused) == [[True] * 3] * 2


def refused(rank: int) -> list[bool]:  # noqa: ARG001
    """Sharded before the loader is made, after, and gathered for an evaluation in between."""
    data = make_dataset(40)
    said = []
    for when in ("before", "after", "gathered"):
        model = nn.Linear(6, 3)
        if when == "before":
            fully_shard(model)
        try:
            loader = ImportanceLoader(data, 4, score="gnorm", model=model, loss=cross_entropy)
            fully_shard(model)
            if when == "gathered":
                with torch.no_grad():
                    model(data.tensors[0])
            next(iter(loader))
        except ArgumentError as error:
            text = str(error)
            said.append("sharded" in text and 'score="upper_bound" or score="loss", or DDP' in text)
        else:
            said.append(False)
    return said


# ----------------------------------------------------------------- torch.distributed.checkpoint


@pytest.mark.parametrize("score", ["auto", "approx"])
def test_checkpoints_of_torch_continue_on_any_number_of_ranks(score: str, tmp_path: Path) -> None:
    one, cut = train(0, score), 23
    saved = on_ranks(2, save, score, cut, tmp_path)
    assert saved[0] == saved[1]
    for world in (2, 3, 1):
        rest = on_ranks(world, resume, score, STEPS - cut, tmp_path)
        assert all(state == saved[0] for _, state in rest)
        check_same(one, [result for result, _ in rest], 1e-12, first=cut)


def save(rank: int, score: str, steps: int, folder: Path) -> Any:  # noqa: ARG001
    training = Training(score)
    training.go(steps)
    dcp.save(training.state(), checkpoint_id=folder)
    return frozen(training.loader.state_dict())


def resume(rank: int, score: str, steps: int, folder: Path) -> tuple[Result, Any]:  # noqa: ARG001
    training = Training(score)
    training.go(2)  # what is there before is replaced
    training.rows.clear()
    state = training.state()
    dcp.load(state, checkpoint_id=folder)
    training.load(state)
    loaded = frozen(training.loader.state_dict())
    return training.go(steps), loaded


def test_packed_states_are_verified() -> None:
    loader = ImportanceLoader(make_dataset(40), 4)
    packed = checkpoint.Packed(loader)
    state, before = packed.state_dict(), frozen(loader.state_dict())
    content = bytearray(state["packed"])
    content[len(content) // 2] ^= 1
    with pytest.raises(StateError, match="the packed state is incomplete, damaged"):
        packed.load_state_dict({"packed": bytes(content)})
    with pytest.raises(StateError, match=r"no packed state: got \['loader', .*save with Packed"):
        packed.load_state_dict(loader.state_dict())
    packed.load_state_dict(state)
    assert frozen(loader.state_dict()) == before


def test_one_process_without_a_group(tmp_path: Path) -> None:
    first, second = (ImportanceLoader(make_dataset(40), 4, score="history") for _ in range(2))
    for step, (x, _) in enumerate(first):
        first.mean(x[:, 0].abs())
        if step == 3:
            break
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        dcp.save({"loader": checkpoint.Packed(first)}, checkpoint_id=tmp_path)
        dcp.load({"loader": checkpoint.Packed(second)}, checkpoint_id=tmp_path)
    assert frozen(second.state_dict()) == frozen(first.state_dict())
