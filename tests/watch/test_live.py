"""The live page in a browser, while a real comparison runs in another process."""

import re
import subprocess
import sys
import threading

import pytest

from compare.browser import COMPLAINTS, opened_browser
from compare.made_up import BAD_END, BAD_NAME, FALLING, directory, run
from salience.watch import Log
from salience.watch.server import make_server


@pytest.fixture(scope="module")
def browser():
    with opened_browser() as opened:
        yield opened


@pytest.fixture
def serve():
    """From a directory to the address of its page."""
    servers = []

    def start(at):
        servers.append(make_server(at, 0))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_address[1]}/"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


TASK = """
import time
import torch
from torch import nn
from torch.utils.data import TensorDataset
from salience.compare import Task

def loss(output, y):
    if output.requires_grad:
        time.sleep(0.01)  # of a training step: long enough to be watched on any machine
    return nn.functional.cross_entropy(output, y, reduction="none")

def make_task():
    x = torch.randn(256, 4, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(x, (x.sum(1) > 0).long())
    return Task(
        name="small",
        train=data,
        test=data,
        model=lambda: nn.Linear(4, 2),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=loss,
        wrong=lambda output, y: output.argmax(1) != y,
        batch_size=32,
    )
"""
EVALUATIONS = 40

POINTS = (  # of the longest line of the train loss
    "Math.max(0, ...[...document.querySelectorAll('#train-0 .line')]"
    ".map((each) => each.getAttribute('points').split(' ').length))"
)
STATE = "document.getElementById('state').textContent"
WIDTHS = "[document.documentElement.scrollWidth, innerWidth]"


def elsewhere(browser, address):
    asked = {each["request"]["url"] for each in browser.heard("Network.requestWillBeSent")}
    return {url for url in asked if not url.startswith((address, "data:"))}


def test_curves_grow_while_a_comparison_runs(browser, serve, tmp_path):
    out = tmp_path / "run"
    (tmp_path / "small.py").write_text(TASK)
    address = serve(out)
    browser.open(address, 1280)
    browser.until("document.getElementById('lead').textContent.includes('no directory')")
    browser.run("window.stays = 1")  # gone if the page were loaded again
    task = f"{tmp_path / 'small.py'}:make_task"
    command = [sys.executable, "-m", "salience", "compare", task, "--out", str(out)]
    options = f"--methods uniform,auto --seeds 2 --steps 160 --evaluations {EVALUATIONS}"
    process = subprocess.Popen(
        [*command, *options.split(), "--threads", "1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        browser.until(f"{POINTS} > 1", 120)
        before = browser.run(POINTS)
        assert re.match(r"running · \d+% done", browser.run(STATE))
        browser.until(f"{POINTS} > {before}", 60)
        browser.until(f"{STATE}.includes('left') || {STATE}.startsWith('finished')", 60)
        browser.until(f"{STATE}.startsWith('finished')", 120)
        assert process.wait(timeout=300) == 0, process.stderr.read().decode()
    finally:
        process.kill()
        process.communicate()
    assert browser.run(POINTS) == EVALUATIONS + 1
    assert browser.run("document.getElementById('progress').ariaValueNow") == "100"
    assert browser.run("window.stays") == 1
    assert browser.run("document.querySelectorAll('.numbers tbody tr').length") == 2
    assert browser.run("document.querySelector('#train-0 .band') !== null")
    assert browser.heard(*COMPLAINTS) == []
    assert elsewhere(browser, address) == set()


def test_a_log_is_drawn_as_it_grows(browser, serve, tmp_path):
    log = Log(tmp_path, steps=100, every=1)
    log.step(train_loss=2.0)
    log.step(train_loss=1.5)
    address = serve(tmp_path)
    browser.open(address, 390, scheme="dark")
    line = "document.querySelector('#value-0-0 .line').getAttribute('points').split(' ').length"
    browser.until("document.querySelector('#value-0-0 .line') !== null")
    assert browser.run(line) == 2
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"step": 3, "seconds": 1, "values": {"train_')
    log.add(test_loss=1.0)  # the line that was cut is lost, and nothing else
    log.step(train_loss=1.0)
    browser.until(f"{line} === 3")
    assert browser.run(WIDTHS) == [390, 390]
    log.close()
    browser.until(f"{STATE} === 'finished'")
    assert browser.heard(*COMPLAINTS) == []
    assert elsewhere(browser, address) == set()


def test_names_are_shown_and_not_obeyed(browser, serve, tmp_path):
    rows = [row for name in ("uniform", BAD_NAME, BAD_END, "x" * 200) for row in run(name, FALLING)]
    for row in rows:
        row["sampler"] = {"mode": BAD_NAME, "why": BAD_END}
    directory(tmp_path / "run", rows, finished=False, evaluations=4)
    browser.open(serve(tmp_path / "run"), 390)
    browser.until(f"{POINTS} > 1")
    names = "[...document.querySelectorAll('.legend [data-method]')].map((e) => e.textContent)"
    assert browser.run(names) == ["uniform", BAD_NAME, BAD_END, "x" * 200]
    assert browser.run("document.querySelectorAll('main :is(b, img, script)').length") == 0
    assert browser.run(WIDTHS) == [390, 390]
    assert browser.heard(*COMPLAINTS) == []


def test_a_name_that_was_made_to_lead_here_is_refused(browser, serve, tmp_path):
    directory(tmp_path / "run", run("uniform", FALLING), finished=False)
    address = serve(tmp_path / "run")
    browser.open(address.replace("127.0.0.1", "rebound.test"), 1280)
    told = browser.run("document.body.textContent").strip()
    assert told == "this page is only for browsers on this machine"


def test_a_server_that_is_gone_is_told(browser, tmp_path):
    directory(tmp_path / "run", run("uniform", FALLING), finished=False)
    server = make_server(tmp_path / "run", 0)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    browser.open(f"http://127.0.0.1:{server.server_address[1]}/", 1280)
    browser.until(f"{POINTS} > 1")
    server.shutdown()
    thread.join()
    server.server_close()
    browser.until(f"{STATE}.startsWith('salience watch does not answer')")
    assert browser.run(POINTS) > 1
