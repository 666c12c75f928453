"""Runs under torchrun that are killed resume from their checkpoint, with the draws they would have.

``SALIENCE_KILLS=30`` kills more often than the default.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from elastic_run import EVERY

HERE = Path(__file__).parent
KILLS = int(os.environ.get("SALIENCE_KILLS", "6"))
STEPS = 30 * KILLS // 2 + 30
SEED = 20261117

# Places inside a save, in order. In two files, "link loader.ckpt.kept" comes when the model's file
# is in its place and the loader's is not.
IN_A_SAVE = {
    "one": ["write", "fsync", "link run.ckpt.kept", "replace run.ckpt", "saved"],
    "two": ["link loader.ckpt.kept", "replace loader.ckpt", "replace model.ckpt", "write", "fsync"],
}
IN_A_STEP = ["time", "drawn", "weighed", "time", "load"]


def make_plan(mode: str, kills: int, choose: random.Random) -> list[dict[str, Any]]:
    """Every second kill is inside a save; every fourth is one of all processes."""
    plan = []
    for i in range(kills):
        saving = i % 2 == 0
        at = (IN_A_SAVE[mode] if saving else IN_A_STEP)[i // 2 % 5]
        whom = "all" if i % 4 == 3 or (saving and i % 10 == 0) else "me"
        if not saving and whom == "me":
            whom = choose.choice(["me", "sibling"])
        skips = {"write": 6, "fsync": 3, "load": 1, "time": 1}.get(at, 2 if saving else 3 * EVERY)
        plan.append(
            {
                "at": at,
                "by": 0 if saving else choose.randrange(2),
                "whom": whom,
                "skip": choose.randrange(skips),
                "seconds": choose.uniform(0, 0.15),
            }
        )
    return plan


class Run(NamedTuple):
    logs: list[list[dict[str, Any]]]  # of each rank
    starts: int  # of torchrun
    output: str


def run(folder: Path, mode: str, plan: list[dict[str, Any]]) -> Run:
    folder.mkdir()
    (folder / "plan.json").write_text(json.dumps(plan))
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *("--max-restarts", str(len(plan)), str(HERE / "elastic_run.py"), str(folder), mode),
        str(STEPS),
    ]
    # Without it a restarted rank may read the addresses of the killed ones: pytorch issue 135712.
    environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    starts, killed = 0, -9
    with (folder / "output").open("a+") as output:
        while killed == -9 and starts <= len(plan):
            starts += 1
            done = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
            try:
                killed = done.wait(60 + 20 * len(plan))
            finally:
                done.kill()
        output.seek(0)
        said = output.read()
    assert killed == 0, f"{plan}\n{said[-5000:]}"
    logs = [(folder / f"log-{rank}").read_text().splitlines() for rank in range(2)]
    return Run([[json.loads(line) for line in log] for log in logs], starts, said)


@pytest.fixture(scope="module")
def through(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run that nobody disturbs."""
    return run(tmp_path_factory.mktemp("elastic") / "run", "one", [])


def rows(log: list[dict[str, Any]]) -> dict[int, Any]:
    return {line["step"]: line["row"] for line in log if "step" in line}


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
@pytest.mark.parametrize("mode", ["two", "one"])
def test_killed_runs_continue_as_if_nothing_had_happened(
    mode: str, through: Run, tmp_path: Path
) -> None:
    plan = make_plan(mode, KILLS // 2, random.Random(f"{SEED} {mode}"))
    found = run(tmp_path / "run", mode, plan)
    told = f"{mode}: {plan}\n{found.output[-3000:]}"
    marks = [(tmp_path / "run" / f"mark-{life}").read_text() for life in range(len(plan))]
    assert marks == [ending["at"] for ending in plan], told
    assert found.starts == 1 + sum(ending["whom"] == "all" for ending in plan), told
    for log, undisturbed in zip(found.logs, through.logs, strict=True):
        expected = rows(undisturbed)
        assert list(expected) == list(range(1, STEPS + 1))
        check_rows(log, expected, told)
        assert set(rows(log)) == set(expected), told
        assert log[-1]["done"] == undisturbed[-1]["done"], told
        assert undisturbed[-1]["auto"] == log[-1]["auto"] == ["focused", True]
    check_resumed(*found.logs, plan, told)


def check_rows(log: list[dict[str, Any]], expected: dict[int, Any], told: str) -> None:
    """Each life goes on right behind what it resumed from, with the rows of the undisturbed run."""
    last = 0
    for line in log:
        if "resumed" in line:
            last = line["resumed"]
        elif "step" in line:
            last += 1
            assert line["step"] == last, told
            assert line["row"] == expected[last], f"step {last} of {told}"


def check_resumed(zero: list[Any], one: list[Any], plan: list[dict[str, Any]], told: str) -> None:
    """Nothing that was acknowledged is lost, and both ranks resume from the same step."""
    kept, resumed, fell_back = 0, {}, 0  # kept: what no later life may go back behind
    for line in zero:
        if "acknowledged" in line:
            kept = max(kept, line["acknowledged"])
        elif "resumed" in line:
            before = plan[line["life"] - 1]["at"] if line["life"] else ""
            # What was saved and not acknowledged any more may be there as well.
            assert line["resumed"] in (kept, kept + EVERY), told
            if before in ("link loader.ckpt.kept", "replace loader.ckpt"):
                fell_back += 1
                assert line["resumed"] == kept, told
            if before == "saved":
                assert line["resumed"] == kept + EVERY, told
            kept = resumed[line["life"]] = line["resumed"]
    for line in one:
        if "resumed" in line:
            assert resumed.get(line["life"], line["resumed"]) == line["resumed"], told
    assert kept == STEPS // EVERY * EVERY, told
    assert fell_back or all("loader" not in ending["at"] for ending in plan), told
