"""Scores of the user's own: made right where that is possible, refused by name where not."""

import math

import numpy as np
import pytest
import torch

from salience.errors import ArgumentError
from salience.scores.checks import check_scores


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_good_scores_pass_as_they_are(dtype):
    scores = torch.tensor([0.0, 2.5], dtype=dtype)
    got = check_scores(scores, 2)
    assert got.dtype == dtype
    assert got.data_ptr() == scores.data_ptr()
    assert check_scores(scores[:0], 0).shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.uint8])
def test_other_numbers_become_float32(dtype):
    got = check_scores(torch.tensor([0, 3], dtype=dtype), 2)
    assert got.dtype == torch.float32
    assert got.tolist() == [0, 3]
    assert check_scores(torch.tensor([True, False]), 2).tolist() == [1, 0]


def test_a_gradient_is_cut_off():
    assert not check_scores(torch.ones(2, requires_grad=True), 2).requires_grad


@pytest.mark.parametrize(
    ("scores", "shown"),
    [
        ([1.0, 2.0, 3.0], r"tensor of shape \[3\]; got list: return torch.as_tensor"),
        (np.ones(3), r"got ndarray"),
        (None, r"got NoneType"),
        (torch.ones(4), r"shape \[3\]; got \[4\]: return one"),
        (torch.ones(3, 1), r"shape \[3\]; got \[3, 1\]"),
        (torch.tensor(1.0), r"shape \[3\]; got \[\]"),
        (torch.ones(3, dtype=torch.complex64), r"real numbers; got torch.complex64"),
        (torch.tensor([1.0, -1.0, 2.0]), r">= 0; own\[1\] = -1 \(pool of 3\): return one"),
        (torch.tensor([1.0, 2.0, math.inf]), r"own\[2\] = inf \(pool of 3\)"),
        (torch.tensor([math.nan, -1.0, 2.0]), r"own\[0\] = nan"),
        (torch.tensor([1, -2, 3]), r"own\[1\] = -2"),
    ],
)
def test_what_cannot_be_a_score_is_refused(scores, shown):
    with pytest.raises(ArgumentError, match=shown) as caught:
        check_scores(scores, 3, "own")
    assert "\n" not in str(caught.value)


def test_nan_is_not_known_yet_where_that_is_allowed():
    assert check_scores(torch.tensor([math.nan, 1.0]), 2, unknown=True)[0].isnan()
    for bad in (-1.0, math.inf, -math.inf):
        with pytest.raises(ArgumentError, match=r"scores\[1\]"):
            check_scores(torch.tensor([math.nan, bad]), 2, unknown=True)


def test_values_elsewhere_are_not_read():
    assert check_scores(torch.ones(3, device="meta"), 3).is_meta
