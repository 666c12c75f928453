"""Files of a user's own: imported as if they were run, and their errors told by file and line."""

import sys
import textwrap

import pytest

from salience.compare.own import check_name, is_own, own_file, own_task
from salience.compare.user_code import OURS, user_code
from salience.errors import ArgumentError

TASK = """
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset
    from salience.compare import Task
    {imports}

    DATA = TensorDataset(torch.zeros(8, 2), torch.zeros(8, dtype=torch.int64))

    def make_task():
        {body}
        return Task("{name}", DATA, DATA, lambda: nn.Linear(2, 2), loss=nn.functional.cross_entropy)

    def not_a_task():
        return 3
"""


def write(path, imports="", body="", name="mine"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(TASK).format(imports=imports, body=body, name=name))
    return path


def test_the_function_may_be_left_out(tmp_path):
    file = write(tmp_path / "users_task.py")
    assert own_task(str(file)).name == own_task(f"{file}:make_task").name == "mine"
    assert (is_own("users_task.py"), is_own("a/b.py:make"), is_own("mnist")) == (True, True, False)
    assert own_file(str(file)) == own_file(f"{file}:other") == file
    for name, sentence in (
        ("nothing", "has no function 'nothing'"),
        ("not_a_task", "returned int"),
    ):
        with pytest.raises(ArgumentError, match=sentence):
            own_task(f"{file}:{name}")
    with pytest.raises(ArgumentError, match=r"there is no file .*none.py: .* salience new"):
        own_task(str(tmp_path / "none.py"))


def test_files_beside_the_task_are_imported_early_and_late(tmp_path):
    (tmp_path / "beside.py").write_text("NAME = 'first'")
    (tmp_path / "beside_late.py").write_text("MORE = 'later'")
    late = "from beside_late import MORE; assert MORE"
    file = write(tmp_path / "users_task.py", "import beside", late, name="{name}")
    file.write_text(file.read_text().replace('Task("{name}"', "Task(beside.NAME"))
    assert own_task(str(file)).name == "first"
    assert sys.path.count(str(tmp_path)) == 1
    own_task(str(file))
    assert sys.path.count(str(tmp_path)) == 1


def test_a_task_of_another_folder_has_its_own_neighbours(tmp_path):
    for folder in ("one", "two"):
        file = write(tmp_path / folder / "users_task.py", "import beside")
        file.write_text(file.read_text().replace('Task("mine"', "Task(beside.NAME"))
        (tmp_path / folder / "beside.py").write_text(f"NAME = {folder!r}")
    for folder in ("one", "two", "one"):
        assert own_task(str(tmp_path / folder / "users_task.py")).name == folder
        other = {"one": "two", "two": "one"}[folder]
        assert str(tmp_path / other) not in sys.path


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("random.py", "has the name of a module that Python knows already"),
        ("torch.py", "has the name of a module that Python knows already"),
        ("my-task.py", "must end in .py and have only letters"),
        ("class.py", "must end in .py and have only letters"),
        ("task.txt", "must end in .py and have only letters"),
    ],
)
def test_names_that_no_task_may_have(tmp_path, name, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        check_name(tmp_path / name)
    write(tmp_path / name)
    with pytest.raises(ArgumentError, match=sentence):
        own_task(f"{tmp_path / name}:make_task")
    assert sys.modules["random"].__file__ != str(tmp_path / "random.py")


# ------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("imports", "body", "sentence"),
    [
        ("import nothing_there", "", r"users_task.py failed in users_task.py, line 6 "),
        ("import nothing_there", "", r"ModuleNotFoundError: No module named 'nothing_there'"),
        ("x = (", "", r"failed in users_task.py, line 6: SyntaxError: '\(' was never closed"),
        (
            "",
            "{}['key']",
            r"make_task of .* failed in users_task.py, line 11 \(`.*`\): KeyError: 'key'",
        ),
        ("", "torch.zeros(2) @ torch.zeros(3)", r"line 11 .*RuntimeError: inconsistent tensor"),
        ("", "raise StopIteration", r"line 11 \(`raise StopIteration`\): StopIteration \(--debug"),
        ("", "Task('a', DATA, DATA, nn.Identity)", "^task 'a' has no loss: give loss="),
    ],
)
def test_errors_show_the_users_line(tmp_path, imports, body, sentence):
    file = write(tmp_path / "users_task.py", imports, body)
    with pytest.raises(ArgumentError, match=sentence) as refusal:
        own_task(str(file))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("always", [True, False])
def test_an_error_of_ours_stays_one(always):
    program = f"with user_code('all', always={always}):\n    int('no number')"
    ours = compile(program, str(OURS / "compare" / "made_up.py"), "exec")
    with pytest.raises(ValueError, match="invalid literal") as raised:
        exec(ours, {"user_code": user_code})
    assert type(raised.value) is ValueError


def test_training_blames_the_user_only_where_their_file_is_on_the_way():
    def inside():
        raise OSError("theirs")

    sentence = r"training failed in test_own.py.*OSError: theirs"
    with pytest.raises(ArgumentError, match=sentence), user_code("training", always=False):
        inside()
