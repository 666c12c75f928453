"""Made-up run directories: rows whose summary is known, and the files of a comparison."""

import numpy as np

from salience.compare.budgets import summarize_all
from salience.compare.directory import write, write_rows
from salience.compare.run import Row


def run(method, losses, *, task="made up", seed=0, cost=0.1, every=10, **tested):
    """The rows of one run, an evaluation each ``every`` steps, the first before training.

    ``cost``: seconds of a step, or a function from the step to the seconds until then.
    """
    seconds = cost if callable(cost) else lambda step: step * cost
    return [
        Row(
            task=task,
            method=method,
            k=0.5,
            seed=seed,
            step=place * every,
            seconds=seconds(place * every),
            examples=place * every * 64,
            train_loss=loss,
            train_max_loss=10 * loss,
            test_loss=loss,
            **(tested or {"test_error": 0.02}),
        )
        for place, loss in enumerate(losses)
    ]


FALLING = [2.0, 1.0, 0.5, 0.25, 0.125]  # the target is 0.125, reached at step 40
WINS = run("uniform", FALLING) + run("history", [2.0, 0.5, 0.125, 0.1, 0.1], cost=0.12)
LOSES = run("uniform", FALLING) + run("history", [2.0, 0.5, 0.1, 0.1, 0.1], cost=0.3)
NEVER = run("uniform", FALLING) + run("history", [2.0, 1.5, 1.0, 0.7, 0.6], test_error=0.04)
EVEN = run("uniform", FALLING) + run("history", FALLING)
SEEDS = [
    *run("uniform", [2.0, 1.0, 0.5, 0.25, 0.1], seed=0, test_error=0.02),
    *run("uniform", [2.0, 1.0, 0.5, 0.25, 0.15], seed=1, test_error=0.03),
    *run("history", [2.0, 0.4, 0.12, 0.1, 0.1], seed=0, cost=0.12, test_error=0.01),
    *run("history", [2.0, 0.5, 0.13, 0.1, 0.08], seed=1, cost=0.12, test_error=0.02),
    *run("loss", [2.0, 0.5, 0.2, 0.19, 0.18], seed=0, cost=0.2, test_error=0.02),
    *run("loss", [2.0, 0.5, 0.2, 0.15, 0.12], seed=1, cost=0.2, test_error=0.02),
]
WORDS = [
    *run("uniform", [6.8, 6.0, 5.5, 5.2, 5.0], test_perplexity=140.25),
    *run("history", [6.8, 5.5, 5.0, 4.9, 4.8], test_perplexity=130.25),
]
WITHIN = {"uniform": {0.5: 0.04, 1.0: 0.02}, "history": {0.5: 0.02, 1.0: 0.01}}
BUDGETS = [
    {**row, "budget": budget}
    for name, errors in WITHIN.items()
    for seed in (0, 1)
    for budget, error in errors.items()
    for row in run(
        name, FALLING, seed=seed, every=round(10 * budget), test_error=error + seed / 100
    )
]
NAMES = ["uniform", *(f"{score}:k={k}" for score in "abcd" for k in (1, 0.5, -0.5))]
MANY = [
    row for i, name in enumerate(NAMES) for row in run(name, [x * (1 + i / 9) for x in FALLING])
]


def directory(at, rows, *, finished=True, hardest=None, **config):
    """A run directory as a comparison leaves it."""
    settings = {
        "command": "salience compare digits",
        "methods": [*dict.fromkeys(row["method"] for row in rows)],
        "seeds": sorted({row["seed"] for row in rows}),
        "steps": 40,
        "seconds": None,
        "versions": {"salience": "0.1.0", "torch": "2.13.0"},
        "hardware": {"cpu": "A Processor @ 2.80GHz", "threads": 1},
        **config,
    }
    write(at / "config.json", settings)
    write_rows(at, rows)
    if finished:
        write(at / "summary.json", summarize_all(rows))
    if hardest is not None:
        write(at / "hardest.json", {"steps": [0, 10], "methods": hardest})
    return at


def example(index, loss, *, seed=0, history=(2.0, 1.0), **shown):
    """An entry of ``hardest.json``."""
    return {"index": index, "seed": seed, "loss": loss, "history": [*history], **shown}


# Data that must be shown as they are.

BAD_NAME = '<b>x</b><script>alert(1)</script> & "q" $a$ | `c` %{y}'
BAD_END = "</script><!--<img src=x onerror=alert(2)>"
BAD_TASK = "digits</title><script>alert(3)</script>"
BAD_TEXT = "the <unk> said\n<script>alert(4)</script> [a](javascript:alert(5))"
LONG = "a-very-long-name:presample=4:draw=multinomial:smoothing=constant:k=-0.5"
NASTY = [
    row
    for name in ("uniform", BAD_NAME, BAD_END, LONG)
    for row in run(name, FALLING, task=BAD_TASK, cost=0.1 + len(name) / 1000)
]

PIXELS = [[[0, 255], [128, 3]]]
COLOURS = np.arange(3 * 4 * 5).reshape(3, 4, 5).tolist()
MADE = {
    "wins": lambda to: directory(
        to,
        SEEDS,
        hardest={
            "uniform": [example(7, 3.5, image=PIXELS), example(8, None, image=COLOURS)],
            "history": [
                example(9, 2.25, history=[2.0, None, 1.0, 0.5], image=PIXELS),
                example(7, 2.5, image=PIXELS),
            ],
        },
    ),
    "words": lambda to: directory(
        to, WORDS, hardest={"history": [example(3, 5.5, text="a <unk> text")]}
    ),
    "budgets": lambda to: directory(to, BUDGETS, budgets=[0.5, 1.0]),
    "many": lambda to: directory(to, MANY),
    "nasty": lambda to: directory(
        to, NASTY, note=BAD_END, hardest={BAD_END: [example(1, 2.0, text=BAD_TEXT)]}
    ),
    "unfinished": lambda to: directory(
        to, [row for row in SEEDS if row["step"] <= 20], finished=False, seeds=[0, 1, 2]
    ),
}
