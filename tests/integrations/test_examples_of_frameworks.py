"""Every example with a framework runs, and prints what it promises."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The example of fine-tuning needs a text: test_transformers_example.py runs it.
EXAMPLES = [
    path
    for path in sorted((ROOT / "examples" / "integrations").glob("*.py"))
    if path.stem != "transformers_finetune"
] + [
    ROOT / "examples" / "distributed" / f"{name}.py"
    for name in ("accelerate_launch", "lightning_ddp", "ray_train")
]
ACCELERATE = ["--multi_gpu", "--num_processes=2", "--main_process_port=0"]
# What an example needs, how it is run, and the line that says what it is about.
SAYS: dict[str, tuple[list[str], list[str], str]] = {
    "accelerate_digits": (["accelerate"], [], r"^test error \d\.\d % after \d+ updates, identical"),
    "lightning_digits": (["lightning"], [], r"^test error \d\.\d % after \d+ steps, identical"),
    "keras_digits": (["keras"], [], r"^test error: \d\.\d % after \d+ steps, resumed once$"),
    "skorch_digits": (["skorch"], [], r"^best \{.*\}, test error: \d\.\d % after \d+ epochs$"),
    "trackers": (["tensorboard"], [], r"^mean loss \d\.\d+ -> 0\.\d+ in \d+ rows; by importance"),
    "accelerate_launch": (
        ["accelerate"],
        ["-m", "accelerate.commands.launch", *ACCELERATE],
        r"^test error \d\.\d % after 230 updates on 2 processes, identical when resumed$",
    ),
    "lightning_ddp": (["lightning"], [], r"^test error \d\.\d % after \d+ steps on 2 processes"),
    "ray_train": (["ray"], [], r"^test error \d\.\d % on 2 workers$"),
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_says_what_it_promises(path: Path, tmp_path: Path) -> None:
    needed, launcher, line = SAYS[path.stem]
    for name in needed:
        if importlib.util.find_spec(name) is None:
            assert os.environ.get("SALIENCE_INTEGRATIONS") != "1", name
            pytest.skip(f"{name} is not installed")
    done = subprocess.run(
        [sys.executable, *launcher, str(path)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(line, done.stdout, re.MULTILINE), done.stdout
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"
