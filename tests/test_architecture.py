"""The shape of the package: which way data flows, and what is public."""

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import salience

ROOT = Path(salience.__file__).parent
# Each layer imports only from layers to its left, and from itself.
LAYERS = [
    {"functional", "errors"},
    {"arguments", "batches", "checkpoint", "generators", "memory", "saved"},
    {"scores", "smoothing", "draw"},
    {"focus", "crossfit", "recency", "trust", "record"},
    {"history"},
    {"sources"},
    {"presets"},
    {"feedback"},
    {"distributed"},
    {"shards"},
    {"assembly"},
    {"learning", "states", "growing"},
    {"sampler"},
    {"pools", "loader"},
    {"integrations"},
    {"compare"},
    {"watch"},
    {"paper"},
    {"insight"},
    {"cli"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
# Two branches leave the loader: comparisons know nothing of integrations.
APART = {(name, "integrations") for name in ("compare", "watch", "paper", "cli")}
MODULES = sorted(
    path for path in ROOT.rglob("*.py") if path.name not in ("__main__.py",) and path.parent != ROOT
) + sorted(path for path in ROOT.glob("*.py") if not path.name.startswith("__"))


def place(path: Path) -> str:
    relative = path.relative_to(ROOT)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imported(path: Path) -> set[str]:
    """The parts of the package that a module imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the direction"
            names = [node.module or ""]
            if node.module == "salience":
                names = [f"salience.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("salience.")}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_come_from_the_layers_below(path: Path) -> None:
    here = place(path)
    # ``from salience import ImportanceLoader`` and the like: the package's face is the loader's.
    for other in {name if name in LEVEL else "loader" for name in imported(path)}:
        assert LEVEL[other] <= LEVEL[here], f"{here} imports {other}"
        assert (here, other) not in APART


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_beside_each_other_do_not_import_in_circles(path: Path) -> None:
    """Within one layer: no two files import each other."""
    here = place(path)
    if path.parent != ROOT:
        return
    for other in imported(path) & {name for name in LEVEL if LEVEL[name] == LEVEL[here]} - {here}:
        beside = ROOT / f"{other}.py"
        assert not beside.exists() or here not in imported(beside), f"{here} and {other}"


def test_every_module_has_its_layer() -> None:
    assert {place(path) for path in MODULES} <= set(LEVEL)


def modules() -> list[str]:
    return [m.name for m in pkgutil.walk_packages([str(ROOT)], "salience.")]


@pytest.mark.parametrize("name", [name for name in modules() if not name.endswith("__main__")])
def test_public_names_exist_and_are_listed(name: str) -> None:
    if name.startswith("salience.integrations."):
        pytest.importorskip(name, reason="an extra that is not installed")
    module = importlib.import_module(name)
    if len(ast.parse(Path(module.__file__).read_text()).body) <= 1:
        return  # a folder with nothing but its docstring
    assert hasattr(module, "__all__"), f"{name} does not say what is public"
    for public in module.__all__:
        assert hasattr(module, public), f"{name}.__all__ names {public}, which does not exist"


def test_the_contract_is_exported() -> None:
    names = {"ImportanceLoader", "ImportanceSampler", "Draw", "Score", "Smoothing", "functional"}
    assert names <= set(salience.__all__)
    assert set(salience.errors.__all__) <= set(salience.__all__)
    equations = {"smooth", "probabilities", "weights", "draw", "merge_duplicates"}
    equations |= {"variance_reduction", "effective_sample_size", "tracking_coefficient"}
    assert equations <= set(salience.functional.__all__)


def test_importing_and_a_first_step_load_no_extra() -> None:
    """The compiler alone takes seconds to load."""
    program = (
        "import sys, torch, salience; from torch.utils.data import TensorDataset; "
        "loader = salience.ImportanceLoader(TensorDataset(torch.zeros(8)), 4); "
        "next(iter(loader)); loader.mean(torch.ones(4, requires_grad=True)).backward(); "
        "extras = {'rich', 'typer', 'matplotlib', 'jinja2', 'torch._dynamo'}; "
        "extras |= {'transformers', 'lightning', 'accelerate', 'keras', 'skorch', 'wandb'}; "
        "assert not extras & set(sys.modules), extras & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_importing_takes_little_longer_than_torch() -> None:
    """Processor time of what comes after torch, the least of three: other work does not count."""
    program = (
        "import time, torch; start = time.process_time(); import salience; "
        "print(time.process_time() - start)"
    )
    added = [
        float(
            subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout
        )
        for _ in range(3)
    ]
    assert min(added) < 0.2
