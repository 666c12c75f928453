"""Are the known label errors of MNIST's training set, labels unchanged, among the suspects?

A network trains with the default loader and ``record=True``: with the default ``--network tiny``
two convolutional layers with dropout, for 10 epochs. The known errors are
the 17 training digits that the authors of confident learning (Northcutt, Jiang and Chuang, 2021)
marked as label errors by hand, among those that cleanlab had found: cleanlab/examples on GitHub,
``cnn_mnist/find_label_errors_cnn_mnist.ipynb``, commit 1f7bb92. For each seed a line has their
places in ``select("suspects", 60000)``, from 1, and what stands first; the picture shows the first
30 of the first seed with index and label, known errors framed.

    python benchmarks/known_errors.py --data-dir data --out results/insight     # a minute
"""

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from suspects import fitted
from torch import Tensor

from salience import LossHistory
from salience.compare.directory import environment
from salience.paper.data.mnist import mnist
from salience.paper.networks import SIZES, mnist_network

KNOWN = (
    *(2676, 7080, 10994, 21601, 24798, 25678, 26560, 29922, 31727),
    *(40144, 40466, 43454, 51248, 53396, 54264, 57662, 59915),
)
SHOWN = 30


def places(history: LossHistory, group: Any) -> dict[int, int]:
    """The place of each known error, from 1."""
    order = history.select(group, len(history)).tolist()
    return {index: order.index(index) + 1 for index in KNOWN}


def picture(history: LossHistory, images: Tensor, path: Path) -> None:
    """The first suspects, ten in a row."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    assert history.label is not None
    figure, axes = plt.subplots(3, 10, figsize=(10, 3.9), layout="constrained")
    for ax, index in zip(axes.flat, history.select("suspects", SHOWN).tolist(), strict=True):
        ax.imshow(images[index].reshape(28, 28), cmap="gray_r")
        ax.set(xticks=[], yticks=[])
        ax.set_title(f"#{index}\nlabel {history.label[index]}", fontsize=8)
        known = index in KNOWN
        ax.spines[:].set(color="#d55e00" if known else "#cccccc", linewidth=2.5 if known else 0.8)
    figure.savefig(path, dpi=90, metadata={"Software": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/insight"))
    parser.add_argument("--history", type=Path, help="save that of the first seed, as .npz")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--network", choices=SIZES, default="tiny")
    options = parser.parse_args()
    torch.set_num_threads(1)
    network = partial(mnist_network, options.network)
    data = mnist(True, options.data_dir)
    options.out.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            **environment(threads=1),
            "network": options.network,
            "epochs": options.epochs,
            "seeds": options.seeds,
        }
    ]
    for seed in range(options.seeds):
        history = fitted(data, seed, options.epochs, network, record=True).history()
        rows.append(
            {
                "seed": seed,
                "suspected": history.suspected,
                "places": places(history, "suspects"),
                "places_by_loss": places(history, "hardest"),
                "first": history.select("suspects", SHOWN).tolist(),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
        if seed == 0:
            picture(history, data.images, options.out / "mnist-suspects.png")
            if options.history is not None:
                history.save(options.history)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (options.out / "known-errors.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
