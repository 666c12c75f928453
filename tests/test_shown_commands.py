"""Every command that a page shows is run, or, where it would take hours, held to what it names.

Commands are the lines of ``sh`` blocks, and of indented blocks that begin with a program. The
commands of a page are run in order, in one new folder:

===================  ===========================================================================
``salience``         run, with every option that is shown; only lengths are shortened (``SHORT``)
                     and made-up data stands for the published sets
``make TARGET``      the target exists: ``make --dry-run``. CI runs the targets themselves
``pip install``      files and extras exist. ``make test-wheel`` installs
``python``, files    an example is run by test_examples.py, a module answers ``--help``, a
                     benchmark knows the options
``torchrun``         its own parser takes the options; examples are run by test_examples.py
``ssh``              what it runs on the other machine is run here
``pytest``           the files that it names exist
``mkdir`` and such    run as they are
===================  ===========================================================================
"""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from socketserver import BaseServer

import pytest
from small_data import put_small_data
from torch.distributed.run import get_args_parser
from typer.main import get_command
from typer.testing import CliRunner

from salience.cli import data, main
from test_docs import DOCS, PAGES, ROOT, blocks, name, without_fences

# What is shortened, and the value that is used instead; those shown are replaced, others added.
SHORT = {
    "demo": {"--steps": "2", "--seeds": "1"},
    "compare": {"--steps": "4", "--seeds": "1", "--evaluations": "1", "--jobs": "1"},
    "reproduce": {"--scale": "0.00001", "--seeds": "1", "--model": "tiny"},
}
SECONDS = "0.2"  # of `compare --seconds`, which has no steps
# Scripts that a reader is asked to write: the page shows them, and these suites run their like.
WRITTEN_BY_READERS = {
    "docs/integrations/transformers.md": {
        "finetune.py": ROOT / "tests/integrations/test_ranks_of_frameworks.py"
    }
}


def indented(path: Path) -> list[str]:
    """The indented blocks of a page."""
    found = re.findall(r"(?:^|\n\n)((?: {4}.*(?:\n|$))+)", without_fences(path))
    return [re.sub(r"^ {4}", "", block, flags=re.M) for block in found]


def lines(path: Path) -> list[str]:
    """The lines that a reader would type, in order of the blocks of each kind."""
    fenced = [block for kind in ("sh", "bash") for block in blocks(path, kind)]
    known = [block for block in indented(path) if block.split()[0] in PROGRAMS]
    shown = "\n".join(fenced + known).replace("\\\n", " ").splitlines()
    return [line for line in shown if shlex.split(line, comments=True)]


def commands(path: Path) -> list[list[str]]:
    """Each command of the page as words, without settings of the environment."""
    found = []
    for line in lines(path):
        words = shlex.split(line, comments=True)
        while "&&" in words:
            end = words.index("&&")
            found.append(words[:end])
            words = words[end + 1 :]
        found.append(words)
    settings = r"[A-Z_]+=.*|export"
    stripped = [_without_first(words, settings) for words in found]
    return [words for words in stripped if words]


def _without_first(words: list[str], pattern: str) -> list[str]:
    while words and re.fullmatch(pattern, words[0]):
        words = words[1:]
    return words


# ------------------------------------------------------------------------------- how each is held


def shortened(arguments: list[str]) -> list[str]:
    """The same command with less to do."""
    short = dict(SHORT.get(arguments[0], {}))
    if "--seconds" in arguments:
        short = {**short, "--seconds": SECONDS}
        del short["--steps"]
    result = list(arguments)
    for option, value in short.items():
        if option in result:
            result[result.index(option) + 1] = value
        else:
            result += [option, value]
    return result


def run_salience(arguments: list[str], page: Path) -> None:
    """Run it; with --resume, after the same command without."""
    for word in arguments:
        _write_task(word)
    typed = shortened(arguments)
    resumed = "--resume" in typed
    for words in ([w for w in typed if w != "--resume"], typed) if resumed else (typed,):
        done = CliRunner().invoke(main.make_app(), words)
        assert done.exit_code == 0, f"{name(page)}: salience {shlex.join(words)}\n{done.output}"


def _write_task(word: str) -> None:
    """The file of a task that a command names: the one of the page about comparisons."""
    file, colon, function = word.partition(":")
    if colon and file.endswith(".py") and not Path(file).exists():
        shown = next(b for b in blocks(DOCS / "compare.md", "python") if f"def {function}(" in b)
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_text(shown, "utf-8")


def dry_make(arguments: list[str], page: Path) -> None:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    command = ["make", "--dry-run", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, f"{name(page)}: {shlex.join(command)}\n{done.stderr}"


def check_pip(arguments: list[str], page: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert arguments[0] == "install"
    words = iter(arguments[1:])
    for word in words:
        if word in ("--constraint", "-c"):
            assert (ROOT / next(words)).exists(), name(page)
            continue
        assert word == "--editable" or not word.startswith("-"), f"{name(page)}: pip {word}"
        for extra in re.findall(r"\[(.*)\]", word):
            assert {*extra.split(",")} <= {*project["optional-dependencies"]}, (
                f"{name(page)}: {word}"
            )
        # The package is on no index: it comes from a checkout or a wheel.
        assert not re.match(r"salience\b(?!-)", word), f"{name(page)}: pip install {word}"


def check_python(arguments: list[str], page: Path) -> None:
    first = arguments[0]
    if first == "-m":
        command = [sys.executable, "-m", arguments[1], "--help"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, f"{name(page)}: {shlex.join(command)}\n{done.stderr}"
    elif first == "-c":
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, f"{name(page)}: {done.stderr}"
    elif Path(first).parts[0] == "benchmarks":
        _check_benchmark(arguments, page)
    else:
        _check_script(first, page)


def _check_benchmark(arguments: list[str], page: Path) -> None:
    """It takes hours: tests/benchmarks runs it in small, and here it knows every option."""
    parts = [word for word in arguments[1:2] if not word.startswith("-")]  # have their own help
    command = [sys.executable, arguments[0], *parts, "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{name(page)}: {shlex.join(command)}\n{done.stderr}"
    for option in (word for word in arguments if word.startswith("--")):
        assert option in done.stdout.split(), f"{name(page)}: {arguments[0]} {option}"


def _check_script(script: str, page: Path) -> None:
    """An example that its suite runs, whatever its name, or one that readers write."""
    like = WRITTEN_BY_READERS.get(name(page), {}).get(script)
    assert (like or ROOT / script).exists(), f"{name(page)}: there is no {script}"
    assert like or Path(script).parts[0] == "examples", f"{name(page)}: no suite runs {script}"


def check_torchrun(arguments: list[str], page: Path) -> None:
    parsed = get_args_parser().parse_args(arguments)
    _check_script(parsed.training_script, page)


def check_pytest(arguments: list[str], page: Path) -> None:
    assert all((ROOT / word).exists() for word in arguments), name(page)


def run_there(arguments: list[str], page: Path) -> None:
    """``ssh -L PORT:HOST:PORT MACHINE COMMAND``: the command is one of a page, run here."""
    option, forwarded, _, program, *rest = arguments
    assert option == "-L", f"{name(page)}: ssh {option}"
    assert re.fullmatch(r"(\d+):127\.0\.0\.1:\1", forwarded), f"{name(page)}: {forwarded}"
    PROGRAMS[program](rest, page)


def as_it_is(program: str) -> Callable[[list[str], Path], None]:
    def run(arguments: list[str], page: Path) -> None:
        done = subprocess.run([program, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, f"{name(page)}: {program} {arguments}\n{done.stderr}"

    return run


def nothing(_: list[str], __: Path) -> None:
    """Of a checkout or an environment that the test has already."""


PROGRAMS: dict[str, Callable[[list[str], Path], None]] = {
    "salience": run_salience,
    "make": dry_make,
    "pip": check_pip,
    "python": check_python,
    "torchrun": check_torchrun,
    "ssh": run_there,
    "pytest": check_pytest,
    "mkdir": as_it_is("mkdir"),
    "cp": as_it_is("cp"),
    "gunzip": as_it_is("gunzip"),
    ".": nothing,  # . .venv/bin/activate
    "cd": nothing,
}

SHOWN = [page for page in PAGES if commands(page)]


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with the recorded results beside it, and small data for every task."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").symlink_to(ROOT / "results")
    put_small_data(monkeypatch)
    # The download itself is tested against a server on loopback: tests/paper/data/test_fetch.py.
    monkeypatch.setattr(data, "fetch_set", lambda *_, **__: [])
    # What serves until Ctrl-C gets it at once.
    monkeypatch.setattr(BaseServer, "serve_forever", interrupted)
    return tmp_path


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("page", SHOWN, ids=name)
def test_the_commands_of_a_page_run(page: Path) -> None:
    for program, *arguments in commands(page):
        assert program in PROGRAMS, f"{name(page)}: nobody knows how to run {program}"
        PROGRAMS[program](arguments, page)


def test_commands_are_found() -> None:
    assert {"README.md", "CONTRIBUTING.md", "docs/compare.md", "results/README.md"} <= set(
        map(name, SHOWN)
    )
    assert ["salience", "report", "runs/mnist"] in commands(ROOT / "results" / "README.md")
    assert ["make", "demo"] in commands(ROOT / "README.md")


MENTION = re.compile(r"(?<!`)`salience ([a-z]+)([^`]*)`")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_in_the_text_exist_with_their_options(page: Path) -> None:
    known = get_command(main.make_app()).commands
    for command, rest in MENTION.findall(without_fences(page)):
        assert command in known, f"{name(page)}: salience {command}"
        options = {option for each in known[command].params for option in each.opts}
        assert {*re.findall(r"--[a-z-]+", rest)} <= options, (
            f"{name(page)}: salience {command} {rest}"
        )


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_installs_in_the_text_are_true(page: Path) -> None:
    for arguments in re.findall(r"(?<!`)`pip ([^`]*)`", without_fences(page)):
        check_pip(shlex.split(arguments), page)


@pytest.mark.parametrize(
    ("typed", "reason"),
    [
        ("salience compare digits --sed 3", "No such option"),
        ("salience compare digits --methods magic", "method must be one of"),
        ("ssh -L 1:127.0.0.1:2 server make help", "1:127.0.0.1:2"),
        ("ssh -L 1:127.0.0.1:1 server make tea", "No rule to make target"),
        ("make tea", "No rule to make target"),
        ("pip install '.[teapot]'", "teapot"),
        ("pip install 'salience[cli]'", "salience"),
        ("torchrun examples/nothing.py", "there is no"),
        ("python -m salience.teapot", "No module named"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_wrong_command_is_found(typed: str, reason: str) -> None:
    program, *arguments = shlex.split(typed)
    with pytest.raises(AssertionError, match=reason):
        PROGRAMS[program](arguments, ROOT / "README.md")


def test_only_lengths_are_shortened() -> None:
    typed = ["compare", "mnist", "--steps", "5000", "--methods", "auto"]
    assert shortened(typed) == [
        *("compare", "mnist", "--steps", "4", "--methods", "auto"),
        *("--seeds", "1", "--evaluations", "1", "--jobs", "1"),
    ]
    assert shortened(["compare", "mnist", "--seconds", "600"])[2:4] == ["--seconds", SECONDS]
    assert shortened(["report", "runs/mnist"]) == ["report", "runs/mnist"]
