"""Recurrent layers written out, step by step.

The built-in layers are one opaque operation: neither can the gradient at the gates be read, nor do
they vectorise over examples (GRU fails, LSTM loops). Written out, each gate is an affine map

    a_t = W_ih x_t + b_ih,    r_t = W_hh h_{t-1} + b_hh,    h_t = cell(a_t, r_t, h_{t-1}),

so the per-example norms of W_ih and W_hh are those of two linear layers over time.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Record", "forward", "is_written_out"]

State = tuple[Tensor, ...]
Cell = Callable[[Tensor, Tensor, State], State]
Record = Callable[[nn.Module, Tensor, Tensor, dict[str, Any]], None]
"""(module, input, output, parameters) of one linear map over time."""


def is_written_out(module: nn.Module) -> bool:
    """Whether ``forward`` below can stand in for the module's own."""
    return type(module) in (nn.LSTM, nn.GRU, nn.RNN) and "forward" not in vars(module)


def forward(module: Any, record: Record | None, input: Any, hx: Any = None) -> Any:
    """What ``module(input, hx)`` returns, for a batch of sequences of one length."""
    if not isinstance(input, Tensor) or input.dim() != 3:  # packed, or one sequence only
        return type(module).forward(module, input, hx)
    x = input.transpose(0, 1) if module.batch_first else input  # [T, B, D]
    before, after = _initial(module, x, hx), list[State]()
    directions = ["", "_reverse"] if module.bidirectional else [""]
    for layer in range(module.num_layers):
        if layer > 0:
            x = F.dropout(x, module.dropout, module.training)
        outputs = []
        for way in directions:
            state = tuple(s[len(after)] for s in before)
            y, last = _one_way(module, f"_l{layer}{way}", x.flip(0) if way else x, state, record)
            outputs.append(y.flip(0) if way else y)
            after.append(last)
        x = torch.cat(outputs, 2)
    finals = tuple(torch.stack(parts) for parts in zip(*after, strict=True))
    output = x.transpose(0, 1) if module.batch_first else x
    return output, finals if isinstance(module, nn.LSTM) else finals[0]


def _initial(module: Any, x: Tensor, hx: Any) -> State:
    if hx is not None:
        return hx if isinstance(hx, tuple) else (hx,)
    layers = module.num_layers * (2 if module.bidirectional else 1)
    h = x.new_zeros(layers, x.shape[1], module.proj_size or module.hidden_size)
    c = x.new_zeros(layers, x.shape[1], module.hidden_size)
    return (h, c) if isinstance(module, nn.LSTM) else (h,)


def _one_way(
    module: Any, suffix: str, x: Tensor, state: State, record: Record | None
) -> tuple[Tensor, State]:
    """One layer in one direction: outputs [T, B, H] and the last state."""
    w_ih, w_hh = getattr(module, "weight_ih" + suffix), getattr(module, "weight_hh" + suffix)
    b_ih, b_hh = (getattr(module, name + suffix, None) for name in ("bias_ih", "bias_hh"))
    a = F.linear(x, w_ih, b_ih)
    # Zero, and there to have the gradient that all of r_t has.
    r = torch.zeros_like(a) if record is None else torch.zeros_like(a).requires_grad_()
    r = r if b_hh is None else r + b_hh
    cell, hidden, across = _cell(module), [state[0]], w_hh.t()
    down = getattr(module, "weight_hr" + suffix).t() if module.proj_size else None
    for a_t, r_t in zip(a.unbind(0), r.unbind(0), strict=True):
        h, *others = cell(a_t, r_t + state[0] @ across, state)
        state = (h if down is None else h @ down, *others)
        hidden.append(state[0])
    if record is not None:
        record(module, x, a, {"weight": w_ih, "bias": b_ih})
        record(module, torch.stack(hidden[:-1]), r, {"weight": w_hh, "bias": b_hh})
    return torch.stack(hidden[1:]), state


def _cell(module: Any) -> Cell:
    if isinstance(module, nn.LSTM):
        return _lstm
    if isinstance(module, nn.GRU):
        return _gru
    return _relu if module.nonlinearity == "relu" else _tanh


def _lstm(a: Tensor, r: Tensor, state: State) -> State:
    i, f, g, o = (a + r).chunk(4, 1)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru(a: Tensor, r: Tensor, state: State) -> State:
    (a_reset, a_keep, a_new), (r_reset, r_keep, r_new) = a.chunk(3, 1), r.chunk(3, 1)
    new = (a_new + (a_reset + r_reset).sigmoid() * r_new).tanh()
    keep = (a_keep + r_keep).sigmoid()
    return ((1 - keep) * new + keep * state[0],)


def _tanh(a: Tensor, r: Tensor, state: State) -> State:  # noqa: ARG001
    return ((a + r).tanh(),)


def _relu(a: Tensor, r: Tensor, state: State) -> State:  # noqa: ARG001
    return ((a + r).relu(),)
