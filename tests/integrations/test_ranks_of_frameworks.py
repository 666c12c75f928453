"""Two ranks under each framework draw, weigh and train as one process with the batch of both."""

import functools
import importlib
import importlib.util
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from harness import EPOCHS, Trace, matters
from rank_cases import STEPS, WORLD, Case, N, by_hand, check, turn_on

HERE = Path(__file__).parent
FRAMEWORKS = ["accelerate", "lightning", "transformers", "ray"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORLD}"]


def installed(name: str) -> bool:
    found = importlib.util.find_spec(name) is not None
    assert found or os.environ.get("SALIENCE_INTEGRATIONS") != "1", f"{name} is not installed"
    return found


FOUND = [name for name in FRAMEWORKS if installed(name)]
CASES = [(name, case) for name in FOUND for case in importlib.import_module(f"ranks_{name}").CASES]
pytestmark = pytest.mark.skipif(not FOUND, reason="no framework is installed")


@functools.cache
def ranks(name: str) -> tuple[list[dict[Case, Trace]], set[str]]:
    """The traces of each rank, all cases in one launch, and the files that were written."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
        launcher = [] if name == "ray" else TORCHRUN  # Ray starts its workers itself
        environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
        done = subprocess.run(
            [sys.executable, *launcher, str(HERE / f"ranks_{name}.py"), folder],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0, done.stderr[-8000:]
        found = [pickle.loads((Path(folder) / f"rank{r}").read_bytes()) for r in range(WORLD)]
        files = {str(each.relative_to(folder)) for each in Path(folder).rglob("*")}
    return found, files


@functools.cache
def expected(name: str, case: Case) -> Trace:
    if name != "transformers":  # both divide by the batches per update, the remainder's too
        return by_hand(case, scale=lambda *_: 1 / case.accumulate)
    if case.normalise:
        with pytest.MonkeyPatch.context() as patch:
            turn_on(patch)
            return texts(patch, case)
    return by_hand(case, scale=share, ahead=case.accumulate)


def share(batches: Any, x: Any) -> float:
    """Of a batch in the examples of an update, which are divided by."""
    return len(x) / sum(len(each) for each, *_ in batches)


def texts(patch: pytest.MonkeyPatch, case: Case) -> Trace:
    from ranks_transformers import BATCH, language_model
    from transformers_parts import texts_by_hand

    options = {"score": case.score, "n": N, "batch_size": WORLD * BATCH}
    assert case.normalise is not None
    return texts_by_hand(patch, language_model, case.normalise, case.accumulate, **options)


def check_case(name: str, case: Case) -> None:
    found, _ = ranks(name)
    one = expected(name, case._replace(stop=None, mutant=None))
    if case.score != "uniform":
        matters(one)
    check(one, [each[case] for each in found], tolerance=1e-12, scaled=name != "transformers")


@pytest.mark.parametrize(("name", "case"), [c for c in CASES if not c[1].mutant], ids=str)
def test_two_ranks_train_as_one_process(name: str, case: Case) -> None:
    check_case(name, case)


@pytest.mark.parametrize(("name", "case"), [c for c in CASES if c[1].mutant], ids=str)
def test_mutants_are_caught(name: str, case: Case) -> None:
    with pytest.raises(AssertionError):
        check_case(name, case)


# ----------------------------------------------------------------------------------------- rank 0


def written(name: str, case: Case) -> set[str]:
    """The files of a case, without its number."""
    number = str([each for given, each in CASES if given == name].index(case))
    files = {Path(each).parts for each in ranks(name)[1]}
    return {str(Path(*parts[1:])) for parts in files if parts[0] == number}


def test_one_rank_writes_the_sampler_of_accelerate() -> None:
    pytest.importorskip("accelerate")
    files = written("accelerate", Case("history", accumulate=2, stop=1))
    assert {each for each in files if "custom" in each} == {"custom_checkpoint_0.pkl"}
    assert {f"random_states_{rank}.pkl" for rank in range(WORLD)} <= files


def test_one_rank_writes_the_sampler_of_trainer() -> None:
    pytest.importorskip("transformers")
    files = written("transformers", Case("history", accumulate=2, stop=1))
    assert "checkpoint-1/importance.pt" in files
    assert {"rank 0 saved 1", "rank 1 saved 0"} <= files


def test_rank_0_logs_the_metrics_of_lightning() -> None:
    pytest.importorskip("lightning")
    files = written("lightning", Case())
    assert {f"rank 0 logged {EPOCHS * STEPS}", "rank 1 logged 0"} <= files
