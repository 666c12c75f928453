"""Ordinary shuffled epochs."""

import torch

from salience.sources import Passes, Shuffled


def shuffled(n: int, **options: bool) -> Shuffled:
    return Shuffled(Passes(n, torch.Generator().manual_seed(0)), **options)


def test_every_example_once_per_pass_and_every_weight_1() -> None:
    source = shuffled(10)
    for _ in range(3):
        draws = [source.draw(4, number) for number in range(3)]
        assert [len(draw) for draw in draws] == [4, 4, 2]
        assert sorted(torch.cat([draw.indices for draw in draws]).tolist()) == list(range(10))
        for draw in draws:
            assert draw.uniform
            assert draw.weights.tolist() == [1.0] * len(draw)
            torch.testing.assert_close(draw.inverse(), torch.ones(len(draw)).double())
    assert not source.active


def test_a_short_batch_is_left_out_with_drop_last() -> None:
    source = shuffled(10, drop_last=True)
    assert [len(source.draw(4, number)) for number in range(6)] == [4] * 6


def test_an_epoch_begins_a_pass() -> None:
    source = shuffled(12)
    source.draw(4, 0)
    source.new_epoch()
    drawn = torch.cat([source.draw(4, number).indices for number in range(3)])
    assert sorted(drawn.tolist()) == list(range(12))
