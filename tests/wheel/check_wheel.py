"""The wheel in a new environment, used outside the repository: `make test-wheel`.

Not part of `make test`: it installs torch into an environment of its own.
"""

import os
import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
EXTRA = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]
MISSING = re.compile(
    r"salience: the command line needs ((?:\w+, )*\w+): (pip install 'salience\[cli\]')\n"
)


@pytest.fixture(scope="session")
def wheel() -> Path:
    (found,) = (ROOT / "dist").glob("*.whl")
    return found


class Environment:
    """A new virtual environment and an empty folder to work in; nothing else is inherited."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.home = folder / "env" / "bin", folder / "home"
        self.home.mkdir()
        subprocess.run([sys.executable, "-m", "venv", str(folder / "env")], check=True)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        kept = {key: os.environ[key] for key in os.environ if key not in ("PYTHONPATH", "PATH")}
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            command,
            cwd=self.home,
            env={**kept, "PATH": path, "PIP_CONSTRAINT": str(ROOT / "constraints.txt")},
            capture_output=True,
            text=True,
            timeout=900,
        )

    def ok(self, *command: str) -> str:
        done = self.run(*command)
        assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="session")
def plain(wheel: Path) -> Iterator[Environment]:
    """With the wheel, and without the command line's packages; removed afterwards."""
    with TemporaryDirectory() as folder:
        made = Environment(Path(folder))
        made.ok("pip", "install", "--quiet", "--disable-pip-version-check", str(wheel))
        yield made


def shipped() -> list[str]:
    """Every file of the package, as the wheel names it."""
    files = (path for path in (SOURCE / "salience").rglob("*") if path.is_file())
    return sorted(
        path.relative_to(SOURCE).as_posix() for path in files if "__pycache__" not in path.parts
    )


def test_the_wheel_has_the_package_its_licence_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    inside = sorted(name for name in names if name.startswith("salience/"))
    assert inside == shipped()
    for part in ("py.typed", "digits.npz", "digits.LICENSE.md", "report.css", "report.js"):
        assert any(name.endswith(f"/{part}") for name in inside), part
    assert sum(name.endswith(".jinja") for name in inside) >= 3
    assert sum(name.startswith("salience/cli/templates/") for name in inside) >= 4
    others = {name.partition("/")[2] for name in names if name not in inside}
    assert others == {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}


def test_the_library_needs_only_torch_and_numpy(plain: Environment) -> None:
    found = plain.ok("python", "-c", "import salience; print(salience.__file__)")
    assert Path(found.strip()).is_relative_to(plain.bin.parent)
    installed = plain.ok("pip", "list", "--format", "freeze").lower()
    names = {line.partition("==")[0] for line in installed.splitlines()}
    assert {"salience", "torch", "numpy"} <= names
    assert not names & {"typer", "rich", "matplotlib"}


def test_the_first_program_of_the_documentation_runs(plain: Environment) -> None:
    page = (ROOT / "docs" / "start.md").read_text("utf-8")
    shown = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    program = "\n".join(shown)
    assert "from salience import ImportanceLoader" in program
    assert len(plain.ok("python", "-W", "error", "-c", program).splitlines()) == 3


def test_the_command_line(plain: Environment) -> None:
    """Without its packages: one sentence, and what it says to type works. Then a short demo."""
    refused = plain.run("salience", "demo")
    said = MISSING.fullmatch(refused.stderr)
    assert refused.returncode == 2
    assert said is not None, refused.stderr
    assert {*said[1].split(", ")} <= {re.split(r"\W", each)[0] for each in EXTRA["cli"]}
    torch_before = plain.ok("python", "-c", "import torch; print(torch.__version__)")

    plain.ok(*shlex.split(said[2]), "--quiet", "--disable-pip-version-check")
    assert plain.ok("python", "-c", "import torch; print(torch.__version__)") == torch_before
    assert "demo" in plain.ok("salience", "--help")
    assert re.fullmatch(r"salience \d+\.\d+\.\S+\n", plain.ok("salience", "--version"))
    assert "Written:" in plain.ok("salience", "demo", "--steps", "20", "--seeds", "1")
    out = plain.home / "salience-demo"
    style = (SOURCE / "salience" / "compare" / "report" / "report.css").read_text("utf-8")
    page = (out / "report.html").read_text("utf-8")
    assert style.strip().splitlines()[-1] in page
    assert {"config.json", "report.md", "runs.jsonl", "summary.json"} <= set(os.listdir(out))


def test_a_new_task_is_written_and_compared(plain: Environment) -> None:
    """After the command line was installed."""
    plain.ok("salience", "new", "my_task.py")
    short = ("--steps", "10", "--seeds", "1", "--evaluations", "2", "--methods", "uniform,auto")
    assert "Written:" in plain.ok("salience", "compare", "my_task.py", *short)
    assert (plain.home / "runs" / "my_task" / "report.html").exists()


def test_everything_asked_for_at_once(wheel: Path, plain: Environment) -> None:
    """The wheel with its extra, as one would install it elsewhere."""
    there = plain.ok("pip", "install", "--dry-run", "--quiet", f"{wheel}[cli]")
    assert "Would install" not in there
