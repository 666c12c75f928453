"""Each framework's suite runs without the others, where its framework is installed.

With SALIENCE_INTEGRATIONS=1, as in ``make test-integrations``, a missing framework is an error.
With 0, as in ``make test``, these suites are left to that target, which runs them in one process:
frameworks change global settings of torch.
"""

import importlib.util
import os
from pathlib import Path

NEEDED = {
    "test_transformers": ["transformers"],
    "test_lightning": ["lightning"],
    "test_accelerate": ["accelerate"],
    "test_keras": ["keras"],
    "test_skorch": ["skorch"],
    "test_trackers": ["tensorboard", "mlflow", "wandb"],
}
# Which skip what is missing.
SEVERAL = ("test_examples_of_frameworks", "test_pages", "test_ranks_of_frameworks")


def missing(path: Path) -> list[str]:
    """What the suite in ``path`` needs and is not installed."""
    needed = [names for start, names in NEEDED.items() if path.stem.startswith(start)]
    return [name for names in needed for name in names if importlib.util.find_spec(name) is None]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    wanted = os.environ.get("SALIENCE_INTEGRATIONS")
    if wanted == "0":
        return True if collection_path.stem.startswith((*NEEDED, *SEVERAL)) else None
    gone = missing(collection_path)
    if gone and wanted == "1":
        raise ModuleNotFoundError(f"{collection_path.name} needs {', '.join(gone)}")
    return True if gone else None
