"""What the page of a directory shows at the moment: a comparison, a log, or that there is none."""

import time
from pathlib import Path
from threading import Lock
from typing import Any, final

from salience.compare.reading import from_json
from salience.compare.report.interactive import figures, legend, looks_of, plain_json
from salience.watch.comparison import Comparing
from salience.watch.following import Follower
from salience.watch.log import FILE
from salience.watch.progress import Pace
from salience.watch.training import Training

__all__ = ["View"]

CONFIG, ROWS = "config.json", "runs.jsonl"
LARGEST = 4 << 20  # bytes of a configuration


@final
class View:
    """A directory that somebody writes to. Nothing in it is ever changed.

    Files are read from where the last look ended, and the page is made anew only if there is news.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = Lock()  # several pages may be open
        self._followers = {name: Follower(directory / name) for name in (ROWS, FILE)}
        self._comparing, self._training, self._pace = Comparing({}), Training(), Pace()
        self._config = b""
        self._read = 0  # rows so far, and one more for whatever else is new
        self._version = time.time_ns()  # no version of another server
        self._made: tuple[Any, ...] = ()
        self._content: dict[str, Any] = {}

    def answer(self, seen: int) -> str | None:
        """The page's data as JSON; None where there is nothing newer than version ``seen``."""
        with self._lock:
            more = self._look()
            made = (self._read, self._shown().ended(self._directory), more)
            if made != self._made:
                self._version, self._made = self._version + 1, made
                self._content = self._make(more)
            return None if seen == self._version else plain_json(self._content)

    # ------------------------------------------------------------------------------------- reading

    def _look(self) -> bool:
        """Read what is new; whether there is more."""
        self._look_at_config()
        more = False
        for name, follower in self._followers.items():
            news = follower.read()
            if news.again:
                self._restart(name)
            reader = self._comparing if name == ROWS else self._training
            for row in news.rows:
                reader.add(row)
            self._read += len(news.rows)
            more = more or news.more
        if (progress := self._shown().progress()) is not None:
            self._pace.look(time.time(), progress)
        return more

    def _restart(self, name: str) -> None:
        self._read += 1
        if name == ROWS:
            self._comparing = Comparing(self._comparing.config)
        else:
            self._training = Training()

    def _look_at_config(self) -> None:
        """The plan of a comparison; one that is not whole yet counts once it is."""
        content = _content(self._directory / CONFIG)
        if content == self._config:
            return
        self._config = content
        try:
            config = from_json(content or b"{}")
        except (ValueError, RecursionError):
            return
        if isinstance(config, dict):
            self._comparing.config = config
            self._read += 1

    # ------------------------------------------------------------------------------------- showing

    def _shown(self) -> Comparing | Training:
        return self._comparing if "methods" in self._comparing.config else self._training

    def _left(self) -> float | None:
        try:
            began = (self._directory / CONFIG).stat().st_mtime if self._config else None
        except OSError:
            began = None
        return self._pace.left(time.time(), began)

    def _make(self, more: bool) -> dict[str, Any]:
        shown = self._shown()
        ended, nothing = shown.ended(self._directory), self._read == 0
        name = self._directory.resolve().name
        charts = shown.charts()
        styles = looks_of(charts)
        drawn = {name: each for chart in charts for name, each in figures(chart, styles).items()}
        return {
            "version": str(self._version),  # more digits than a browser's numbers have
            "title": name if nothing else f"{shown.title}: {name}",
            "state": "waiting" if nothing else "finished" if ended else "running",
            "lead": self._waiting() if nothing else shown.lead(),
            "progress": 1.0 if ended else shown.progress(),
            "left": None if ended else self._left(),
            "table": shown.table(),
            "legend": legend(styles),
            "charts": [
                {
                    "name": chart.name,
                    "title": chart.title,
                    "panels": [panel.title for panel in chart.panels],
                }
                for chart in charts
            ],
            "figures": drawn,
            "more": more,
        }

    def _waiting(self) -> str:
        if not self._directory.is_dir():
            return f"There is no directory {self._directory} yet. This page waits for it."
        return f"There is nothing in {self._directory} yet. This page waits for it."


def _content(path: Path) -> bytes:
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:
            return b""
        return path.read_bytes()
    except OSError:
        return b""
