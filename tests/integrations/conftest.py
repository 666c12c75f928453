"""Each framework's suite runs without the others.

With SALIENCE_INTEGRATIONS=1, as in ``make test-integrations``, a missing framework is an error.
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


def missing(path: Path) -> list[str]:
    """What the suite in ``path`` needs and is not installed."""
    needed = [names for start, names in NEEDED.items() if path.stem.startswith(start)]
    return [name for names in needed for name in names if importlib.util.find_spec(name) is None]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    gone = missing(collection_path)
    if gone and os.environ.get("SALIENCE_INTEGRATIONS"):
        raise ModuleNotFoundError(f"{collection_path.name} needs {', '.join(gone)}")
    return True if gone else None
