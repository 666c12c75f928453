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
# Left to right. A module imports only from its own folder and from the left of it.
ORDER = (
    *("errors", "functional", "data", "scores", "distribution", "weights", "loader"),
    *("integrations", "experiments", "reports", "commands", "cli"),
)
# Two branches leave the loader: experiments know nothing of integrations.
APART = {("experiments", "integrations"), ("reports", "integrations"), ("commands", "integrations")}
MODULES = sorted(path for path in ROOT.rglob("*.py") if path.parent != ROOT or path.stem in ORDER)


def stage(path: Path) -> str:
    relative = path.relative_to(ROOT)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imported_stages(path: Path) -> set[str]:
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
    return found & set(ORDER)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_come_from_the_left(path: Path) -> None:
    here = stage(path)
    for other in imported_stages(path):
        assert ORDER.index(other) <= ORDER.index(here), f"{here} imports {other}"
        assert (here, other) not in APART


def test_every_folder_has_its_place() -> None:
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert folders <= set(ORDER)


def modules() -> list[str]:
    return [m.name for m in pkgutil.walk_packages([str(ROOT)], "salience.")]


@pytest.mark.parametrize("name", [name for name in modules() if not name.endswith("__main__")])
def test_public_names_exist_and_are_listed(name: str) -> None:
    module = importlib.import_module(name)
    if len(ast.parse(Path(module.__file__).read_text()).body) <= 1:
        return  # a folder with nothing but its docstring
    assert hasattr(module, "__all__"), f"{name} does not say what is public"
    for public in module.__all__:
        assert hasattr(module, public), f"{name}.__all__ names {public}, which does not exist"


def test_the_contract_is_exported() -> None:
    assert {"ImportanceLoader", "ImportanceSampler", "Draw", "functional"} <= set(salience.__all__)
    names = ["smooth", "probabilities", "weights", "draw", "merge_duplicates", "variance_reduction"]
    names += ["effective_sample_size", "tracking_coefficient"]
    assert set(names) <= set(salience.functional.__all__)


def test_importing_the_package_loads_no_extra() -> None:
    program = (
        "import sys, salience; "
        "heavy = {'rich', 'typer', 'matplotlib', 'plotly', 'jinja2'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
