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


def test_probabilities_are_those_of_the_pass_under_way() -> None:
    source = Shuffled(Passes(10, torch.Generator()))
    source.draw(5, 0)
    source.extend(20)
    draws = [source.draw(5, number) for number in range(1, 6)]
    assert [draw.pool for draw in draws] == [10, 20, 20, 20, 20]
    assert [float(draw.probabilities[0]) for draw in draws] == [0.1, 0.05, 0.05, 0.05, 0.05]
    assert sorted(torch.cat([draw.indices for draw in draws[1:]]).tolist()) == list(range(20))
