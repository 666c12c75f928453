"""The paper's approximation: a small LSTM predicts each loss from its history and its class."""

from typing import Any, final

import torch
from torch import Tensor, nn

from salience import saved
from salience.batches.labels import narrow
from salience.errors import ArgumentError
from salience.scores.protocol import Unit

__all__ = ["Approx", "LossPredictor", "LossRecord"]

LENGTH = 10  # remembered losses per example
HIDDEN = 32  # of the LSTM, and of the class embedding
EAGER = 128  # updates at the beginning, each of which trains the model
EVERY = 8  # from then on only one in so many does
LARGEST = torch.finfo(torch.float32).max


@final
class LossRecord:
    """The last ``LENGTH`` losses of each example, oldest first, and how many there are.

    The count says what is history and what is padding, so a true loss of zero stays a loss.
    """

    def __init__(self, n: int) -> None:
        self.losses = torch.zeros(n, LENGTH, dtype=torch.float32, device="cpu")
        self.counts = torch.zeros(n, dtype=torch.uint8, device="cpu")

    def extend(self, n: int) -> None:
        """Grow to ``n`` examples; the new ones have no losses."""
        new = n - len(self.counts)
        self.losses = torch.cat([self.losses, self.losses.new_zeros(new, LENGTH)])
        self.counts = torch.cat([self.counts, self.counts.new_zeros(new)])

    def rows(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Losses [len(indices), LENGTH] and counts; no columns where nobody has a loss."""
        counts = self.counts.index_select(0, indices)
        if not counts.any():  # all examples at the start: reading them takes a while
            return self.losses.new_empty(len(indices), 0), counts
        return self.losses.index_select(0, indices), counts

    def append(self, indices: Tensor, losses: Tensor) -> None:
        """Add one loss to each of the distinct ``indices``, dropping the oldest of a full row."""
        rows, counts = self.losses[indices], self.counts[indices].long()
        full = (counts == LENGTH).unsqueeze(1)
        rows = torch.where(full, rows.roll(-1, 1), rows)
        at = counts.clamp(max=LENGTH - 1).unsqueeze(1)
        self.losses[indices] = rows.scatter(1, at, losses.unsqueeze(1))
        self.counts[indices] = (counts + 1).clamp(max=LENGTH).to(torch.uint8)


@final
class LossPredictor(nn.Module):
    """M_i = w . [LSTM(history_i), embedding(class_i)] + b; the history alone without classes."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        place: dict[str, Any] = {"device": "cpu", "dtype": torch.float32}
        self.lstm = nn.LSTM(1, HIDDEN, batch_first=True, **place)
        self.embedding = nn.Embedding(classes, HIDDEN, **place) if classes else None
        if self.embedding is not None:
            # As the authors' framework begins. Torch's own standard normal would make classes that
            # have not come up yet differ widely, and those of large value would be drawn for it.
            nn.init.uniform_(self.embedding.weight, -0.05, 0.05)
        self.linear = nn.Linear(2 * HIDDEN if classes else HIDDEN, 1, **place)

    def forward(self, losses: Tensor, counts: Tensor, classes: Tensor | None) -> Tensor:
        """[n, LENGTH] losses, [n] counts, [n] classes -> [n] predicted losses."""
        hidden = self._histories(losses, counts)
        if self.embedding is not None:
            hidden = torch.cat([hidden, self.embedding(classes)], dim=1)
        out: Tensor = self.linear(hidden).squeeze(1)
        return out

    def _histories(self, losses: Tensor, counts: Tensor) -> Tensor:
        """The LSTM's state after the last loss, [n, HIDDEN]; zeros where there is none."""
        longest = int(counts.max())  # what lies beyond is padding for all of them
        if longest == 0:  # at the start that is everybody: no need to run the LSTM over nothing
            return losses.new_zeros(len(losses), HIDDEN)
        states = self.lstm(losses[:, :longest].unsqueeze(-1))[0]
        last = (counts.long() - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, HIDDEN)
        hidden: Tensor = states.gather(1, last).squeeze(1) * (counts > 0).unsqueeze(1)
        return hidden


@final
class Approx:
    """s_i = predicted loss, from a model trained alongside with Adam on the squared error.

    It lives on the host whatever the device of the trained model, and so overlaps with it.
    ``refresh``: how many further examples per step get a new prediction when draws cover the
    whole dataset, where predictions are kept and not made anew at each draw.
    ``every``: once it has seen some steps, the model is trained at one in so many. By then it
    changes slowly, and its training is the dearest part of a step.
    ``classes``: how many there are, where ``labels`` are only some of them.
    """

    by_index = True
    unit: Unit = "loss"

    def __init__(
        self,
        n: int,
        labels: Tensor | None = None,
        *,
        seed: int = 0,
        learning_rate: float = 1e-3,
        refresh: int = 64,
        every: int = EVERY,
        classes: int | None = None,
    ) -> None:
        self._n = n
        self._every = every
        self._updates = 0
        self._refresh = refresh
        self._labels = None if labels is None else narrow(labels)
        self._record = LossRecord(n)
        self._next = 0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            known = 0 if labels is None else int(labels.max()) + 1
            self._model = LossPredictor(classes or known)
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=learning_rate, fused=True)

    def extend(self, n: int, labels: Tensor | None = None) -> None:
        """Grow to ``n`` examples; ``labels`` are the classes of the new ones, if there are any."""
        if self._labels is not None:
            self._labels = torch.cat([self._labels, self._checked(labels, n - self._n)])
        self._record.extend(n)
        self._n = n

    def _checked(self, labels: Tensor | None, new: int) -> Tensor:
        """The classes of ``new`` further examples, all of them classes that the model knows."""
        assert self._labels is not None
        assert self._model.embedding is not None
        if labels is None or labels.shape != (new,):
            given = "none" if labels is None else f"shape {list(labels.shape)}"
            raise ArgumentError(
                f"labels must be given for the {new} new examples, as for the first; got {given}"
            )
        classes = self._model.embedding.num_embeddings
        if bool(((labels < 0) | (labels >= classes)).any()):
            raise ArgumentError(
                f"labels of new examples must be among the {classes} classes that 'approx' began "
                f"with; got classes {int(labels.min())} to {int(labels.max())}: begin anew with "
                f"all classes"
            )
        return labels.to(self._labels.dtype)

    def predict(self, indices: Tensor) -> Tensor:
        """The model's output for ``indices``, which may be below zero."""
        losses, counts = self._record.rows(indices)
        classes = None if self._labels is None else self._labels.index_select(0, indices).long()
        # The user may call from within autocast; this model is its own.
        with torch.autocast("cpu", enabled=False):
            out: Tensor = self._model(losses, counts, classes)
        return out

    @torch.enable_grad()
    def score(self, indices: Tensor, batch: Any) -> Tensor:  # noqa: ARG002
        # With gradients on and not used: without them torch takes another LSTM for the CPU, which
        # is more than twice as slow at this size.
        return self.predict(indices).detach().clamp(min=0)

    def update(self, indices: Tensor, losses: Tensor) -> Tensor:
        # The history is still that of before this step: it predicts the losses now seen.
        if self._updates < EAGER or self._updates % self._every == 0:
            self._train(indices, losses)
        self._updates += 1
        self._record.append(indices, losses)
        refresh = min(self._refresh, self._n)
        others = (self._next + torch.arange(refresh, device="cpu")) % self._n
        self._next = (self._next + refresh) % self._n
        return torch.cat([indices, others])

    @torch.enable_grad()
    def _train(self, indices: Tensor, losses: Tensor) -> None:
        self._optimizer.zero_grad()
        error = (self.predict(indices) - losses).square().mean()
        if not bool(error.isfinite()):  # losses of 1e19 and more: their squares are no float32
            return
        torch.autograd.backward(error)
        for parameter in self._model.parameters():
            if parameter.grad is None:  # no example had a history: to Adam that is a gradient of 0
                parameter.grad = torch.zeros_like(parameter)
        self._optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        return {
            "updates": self._updates,
            "losses": self._record.losses.clone(),
            "counts": self._record.counts.clone(),
            "next": self._next,
            "model": {name: value.clone() for name, value in self._model.state_dict().items()},
            "optimizer": _copied(self._optimizer.state_dict()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        losses = saved.floats(state["losses"], least=0, most=LARGEST, shape=(self._n, LENGTH))
        counts = saved.indices(state["counts"], LENGTH + 1, self._n, torch.uint8)
        self._next = saved.whole(state["next"], 0, self._n - 1)
        self._updates = saved.whole(state["updates"])
        self._record.losses.copy_(losses)
        self._record.counts.copy_(counts)
        for name, value in self._model.state_dict().items():
            saved.floats(state["model"][name], shape=tuple(value.shape))
        self._model.load_state_dict(state["model"])
        self._load_optimizer(state["optimizer"]["state"])

    def _load_optimizer(self, moments: dict[int, dict[str, Any]]) -> None:
        """What it has learned; its settings are this one's own."""
        shapes = [tuple(parameter.shape) for parameter in self._model.parameters()]
        if moments and sorted(moments) != list(range(len(shapes))):
            raise ValueError(f"moments of parameters {sorted(moments)}")
        kept = {}
        for place, own in moments.items():
            shape = shapes[place]
            kept[place] = {
                "step": saved.floats(own["step"], least=0, shape=()).clone(),
                "exp_avg": saved.floats(own["exp_avg"], shape=shape).clone(),
                "exp_avg_sq": saved.floats(own["exp_avg_sq"], least=0, shape=shape).clone(),
            }
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": kept, "param_groups": groups})


def _copied(tree: Any) -> Any:
    """The same nesting with its tensors cloned, so that training on does not change it."""
    if isinstance(tree, dict):
        return {key: _copied(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_copied(value) for value in tree)
    return tree.clone() if isinstance(tree, Tensor) else tree
