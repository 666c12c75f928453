"""Small data in place of the published sets."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils.data import TensorDataset

from salience.compare.digits import digits_task
from salience.compare.task import Task
from salience.paper import tasks
from salience.paper.data.images import Augmented, Images, Scale
from salience.paper.data.ptb import Words


def images(train, _, side):
    n = 1000 if train else 100
    channels = 3 if side == 32 else 1
    pixels = torch.arange(n * channels * side**2).view(n, channels, side, side) % 251
    scale = Scale((0.1,) * channels, (0.3,) * channels)
    return Images(pixels.to(torch.uint8), torch.arange(n) % 10, scale)


def put_small_data(monkeypatch):
    """Let the tasks read a thousand made-up pictures, or sixty sentences."""
    cifar10 = partial(images, side=32)
    monkeypatch.setattr(tasks, "mnist", partial(images, side=28))
    monkeypatch.setattr(tasks, "cifar10", cifar10)
    tasks._cifar10_finetune.cache_clear()
    monkeypatch.setattr(tasks, "cifar10_augmented", lambda _: Augmented(cifar10(True, None), 10))
    text = Words([["a", "b", "<eos>"]] * 60, ("<pad>", "<eos>", "a", "b"))
    monkeypatch.setattr(tasks, "penn_treebank", lambda *_: text)


def stand_in(name: str, **_: Any) -> Task:
    """Some of the shipped digits in place of a data set that has to be downloaded."""
    whole = digits_task()
    order = torch.randperm(1437, generator=torch.Generator().manual_seed(0))[:224]
    x, y = (tensor[order] for tensor in whole.train.tensors)
    return replace(
        whole,
        name=name,
        train=TensorDataset(x[:160], y[:160]),
        test=TensorDataset(x[160:], y[160:]),
        batch_size=16,
        wrong=None if name == "ptb" else whole.wrong,
        metrics=["perplexity"] if name == "ptb" else None,
    )
