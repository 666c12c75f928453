"""The fine-tuning example: a model saved here is loaded as one of the hub is."""

import os
import random
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from salience.errors import DataError

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/integrations/transformers_finetune.py"
SAYS = r"^next word: \d+\.\d% of (\d+) told right$"
PLACES = [os.environ.get("SALIENCE_DATA"), ROOT.parent / "shared/data"]


def run(where: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In an empty directory, without a network."""
    environment = {k: v for k, v in os.environ.items() if k != "SALIENCE_DATA"}
    return subprocess.run(
        [sys.executable, str(EXAMPLE), *arguments],
        cwd=where,
        env={**environment, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def sentences(done: subprocess.CompletedProcess[str]) -> int:
    assert done.returncode == 0, done.stderr
    found = re.search(SAYS, done.stdout, re.MULTILINE)
    assert found, done.stdout
    return int(found[1])


@pytest.fixture
def small_text(tmp_path: Path) -> Path:
    """Letters with one frequent word behind."""
    chance = random.Random(0)
    (tmp_path / "data/ptb").mkdir(parents=True)
    for part, number in {"train": 80, "valid": 20}.items():
        words = [
            [*chance.sample("abcdefgh", 4), chance.choice(["the", "of"])] for _ in range(number)
        ]
        lines = [" ".join(each) for each in words]
        (tmp_path / f"data/ptb/ptb.{part}.txt").write_text("".join(f" {line} \n" for line in lines))
    return tmp_path / "data"


def test_it_trains_saves_loads_and_fine_tunes(small_text: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    done = run(empty, "--data-dir", str(small_text), "--steps", "8")
    assert sentences(done) == 20
    assert "importance/active" in done.stdout
    assert not list(empty.iterdir()), "an example leaves nothing behind"


def test_it_fine_tunes_a_model_from_elsewhere(small_text: Path, tmp_path: Path) -> None:
    """Of another kind, saved by other code, and without a token for padding."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    numbers = {word: i for i, word in enumerate(["<unk>", "<end>", *"abcdefgh"])}
    words = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<end>", unk_token="<unk>"
    )
    config = LlamaConfig(
        vocab_size=10,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        bos_token_id=1,
        eos_token_id=1,
    )
    where = tmp_path / "model"
    LlamaForCausalLM(config).save_pretrained(where)
    tokenizer.save_pretrained(where)
    done = run(tmp_path, "--data-dir", str(small_text), "--steps", "8", "--model", str(where))
    assert sentences(done) == 20


def test_it_runs_on_penn_treebank(tmp_path: Path) -> None:
    there = [place for place in PLACES if place and Path(place, "ptb/ptb.train.txt").is_file()]
    if not there:
        pytest.skip("Penn Treebank is not in SALIENCE_DATA, nor in ../shared/data")
    assert sentences(run(tmp_path, "--data-dir", str(there[0]), "--steps", "10")) == 2847


def test_it_says_what_it_takes_and_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SALIENCE_DATA", raising=False)
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--help"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert "--model" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE)])
    with pytest.raises(DataError, match="pass --data-dir DIR, or set SALIENCE_DATA"):
        runpy.run_path(str(EXAMPLE), run_name="__main__")


def test_it_is_short() -> None:
    assert len(EXAMPLE.read_text("utf-8").splitlines()) <= 120
