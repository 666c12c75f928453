"""Markdown tables and a figure from the rows of ``scale.py`` (and of ``simulate_ranks.py``)."""

import gzip
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from contenders import BASELINES, OURS, UNIFORM

__all__ = ["figure", "markdown", "number", "read_rows", "tables", "write_page"]

Row = dict[str, Any]

# The limits of the project, in ms, seconds and bytes.
LARGE, LARGE_N = 8192, 10**7
MEAN, LONGEST = 3.0, 20.0
GROWTH = 2.0  # from the smallest N to the largest
CONSTRUCTION = 20.0
BYTES = {"approx": 80.0}  # 40 for others


def read_rows(path: Path) -> list[Row]:
    """Plain or compressed JSON lines."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in text.decode().splitlines()]


def number(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tables(rows: list[Row]) -> dict[str, str]:
    """By name: those that the rows suffice for."""
    made = {
        "draws": draws_table(rows),
        "memory": memory_table(rows),
        "large": large_table(rows),
        "growth": growth_table(rows),
        "state": state_table(rows),
        "about": about(rows),
    }
    return {name: table for name, table in made.items() if table}


def write_page(page: Path, made: dict[str, str]) -> None:
    """Put each table between its marks, ``<!-- NAME -->`` and ``<!-- /NAME -->``."""
    text = page.read_text("utf-8")
    for name, table in made.items():
        marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if not marks.search(text):
            raise SystemExit(f"{page} has no marks <!-- {name} --> and <!-- /{name} -->")
        text = marks.sub(lambda m, table=table: f"{m[1]}\n{table}\n\n{m[2]}", text)
    page.write_text(text, "utf-8")


# ------------------------------------------------------------------------------------------- cells


def of_part(rows: list[Row], part: str) -> list[Row]:
    return [row for row in rows if row["part"] == part]


def sorted_values(rows: list[Row], field: str) -> list[Any]:
    return sorted({row[field] for row in rows})


def in_order(rows: list[Row]) -> list[str]:
    """The methods of the rows: ours first."""
    known = [*OURS, "approx", *BASELINES]
    found = {row["method"] for row in rows}
    return [name for name in known if name in found] + sorted(found - set(known))


def find(rows: list[Row], **wanted: Any) -> Row | None:
    found = [row for row in rows if wanted.items() <= row.items()]
    return found[-1] if found else None


def value(row: Row, field: str) -> float:
    """``step_ms``: the mean by the shorter of wall clock and processor time.

    A step waits for nothing, so what other programs took of the wall clock is not its own.
    """
    found: float = min(row["mean_ms"], row["processor_ms"]) if field == "step_ms" else row[field]
    return found


def cell(row: Row | None, *fields: str) -> str:
    """The values of a row, the second in brackets; why there are none; or nothing."""
    if row is None:
        return ""
    if row["status"] != "done":
        return "fails" if row["status"] == "error" else f"over {row['limit_seconds']:g} s"
    first, *others = (number(value(row, field)) for field in fields)
    return f"{first} ({', '.join(others)})" if others else first


def within(value: float, limit: float) -> str:
    return number(value) if value <= limit else f"**{number(value)}**"


# ------------------------------------------------------------------------------------------ tables


def draws_table(rows: list[Row]) -> str:
    """Mean (longest) in ms, both by the shorter of two clocks."""
    rows = of_part(rows, "draws")
    sizes = sorted_values(rows, "n")
    lines = [
        [f"{batch:,}", f"`{name}`", *cells]
        for batch in sorted_values(rows, "batch")
        for name in in_order([row for row in rows if row["batch"] == batch])
        for cells in [
            [
                cell(find(rows, method=name, n=n, batch=batch), "step_ms", "longest_ms")
                for n in sizes
            ]
        ]
    ]
    return markdown(["G", "method", *(f"N = {n:,}" for n in sizes)], lines) if lines else ""


def memory_table(rows: list[Row]) -> str:
    """Resident (peak) bytes per example, at the smallest G."""
    rows = of_part(rows, "draws")
    if not rows:
        return ""
    sizes, batch = sorted_values(rows, "n")[-2:], min(sorted_values(rows, "batch"))
    fields = ("bytes_per_example", "peak_bytes_per_example")
    lines = [
        [f"`{name}`", *(cell(find(rows, method=name, n=n, batch=batch), *fields) for n in sizes)]
        for name in in_order(rows)
    ]
    return markdown(["method", *(f"N = {n:,}" for n in sizes)], lines)


def large_table(rows: list[Row]) -> str:
    """G = 8,192 and N = 10^7, one rank and several: the slowest rank."""
    lines = []
    for name in OURS:
        one = find(of_part(rows, "draws"), method=name, n=LARGE_N, batch=LARGE)
        ranks = [row for row in of_part(rows, "ranks") if row["method"] == name]
        lines += [[f"`{name}`", "1", *one_cells(one)]] if one else []
        lines += [[f"`{name}`", str(ranks[0]["ranks"]), *rank_cells(ranks)]] if ranks else []
    header = ["method", "ranks", "mean ms", "longest ms"]
    header += ["mean without gather", "longest without gather", "processor ms"]
    return markdown(header, lines) if lines else ""


def one_cells(row: Row) -> list[str]:
    if row["status"] != "done":
        return [cell(row), "", "", "", ""]
    limited = [within(row["mean_ms"], MEAN), within(row["longest_ms"], LONGEST)]
    return [*limited, "", "", number(row["processor_ms"])]


def rank_cells(ranks: list[Row]) -> list[str]:
    if ranks[0]["status"] != "done":
        return [cell(ranks[0]), "", "", "", ""]

    def most(field: str) -> float:
        return max(row[field] for row in ranks)

    return [
        within(most("mean_ms"), MEAN),
        within(most("longest_wall_ms"), LONGEST),
        within(most("mean_without_gather_ms"), MEAN),
        within(most("longest_without_gather_ms"), LONGEST),
        number(most("processor_ms")),
    ]


def growth_table(rows: list[Row]) -> str:
    """G = 128: mean and longest at each N, growth, construction, memory at the largest N."""
    rows = [row for row in of_part(rows, "draws") if row["batch"] == 128]
    sizes = sorted_values(rows, "n")
    lines = []
    for name in (*OURS, "approx"):
        own = [find(rows, method=name, n=n) for n in sizes]
        if any(own):
            cells = [cell(row, "step_ms", "longest_ms") for row in own]
            lines.append([f"`{name}`", *cells, *growth_cells(name, own)])
    header = ["method", *(f"N = {n:,}" for n in sizes)]
    header += ["growth of mean", "of longest", "construction, s", "bytes per example"]
    return markdown(header, lines) if lines else ""


def growth_cells(name: str, own: list[Row | None]) -> list[str]:
    first, last = own[0], own[-1]
    if first is None or last is None or {first["status"], last["status"]} != {"done"}:
        return ["", "", "", ""]
    limit = BYTES.get(name, 40.0)
    return [
        *(
            within(value(last, field) / value(first, field), GROWTH)
            for field in ("step_ms", "longest_ms")
        ),
        within(last["construction_seconds"], CONSTRUCTION),
        within(last["bytes_per_example"], limit),
    ]


def state_table(rows: list[Row]) -> str:
    """Seconds and MB/s of a checkpoint, beside plain files."""
    lines = [
        [
            f"`{row['method']}`",
            f"{row['n']:,}",
            number(row["bytes"] / 1e6),
            *(speed(row, f"{part}_seconds") for part in ("save", "plain_write")),
            *(speed(row, f"{part}_seconds") for part in ("load", "plain_read")),
            number(row["state_dict_seconds"]),
            number(row["load_state_dict_seconds"]),
        ]
        for row in of_part(rows, "state")
        if row["status"] == "done"
    ]
    header = ["method", "examples", "MB", "save, s (MB/s)", "plain write", "load", "plain read"]
    header += ["`state_dict`, s", "`load_state_dict`, s"]
    return markdown(header, lines) if lines else ""


def speed(row: Row, field: str) -> str:
    return f"{number(row[field])} ({number(row['bytes'] / 1e6 / row[field])})"


def about(rows: list[Row]) -> str:
    """Commits, versions and hardware of the rows, and the errors of those that failed."""
    commits = sorted({f"`{(row['commit'] or 'unknown')[:7]}`" for row in rows})
    versions = sorted({", ".join(f"{k} {v}" for k, v in row["versions"].items()) for row in rows})
    hardware = sorted(
        {"{cpu}, {cores} cores, {platform}".format(**row["hardware"]) for row in rows}
    )
    lines = [f"Commit {', '.join(commits)}; {'; '.join(versions)}; {'; '.join(hardware)}."]
    failed = sorted({(row["method"], row["error"]) for row in rows if row["status"] == "error"})
    failures = [f"- `{method}` fails: {error}" for method, error in failed]
    lines += ["", *failures] if failures else []  # a list of its own, for every Markdown
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------ figure

COLORS = ("#0b6e4f", "#46b08a", "#1f4e9c", "#6fa0e8", "#c1121f", "#e07a1f", "#8b2fb0", "#c77dde")
GREYS = ("#777777", "#aaaaaa")


def figure(rows: list[Row], path: Path) -> None:
    """Mean time of a step against N, one panel for each G."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for row in of_part(rows, "draws") if row["method"] != "approx"]
    batches, names = sorted_values(rows, "batch"), in_order(rows)
    shape = {"figsize": (4.2 * len(batches) + 1, 5.6), "sharey": True, "squeeze": False}
    made, axes = pyplot.subplots(1, len(batches), layout="constrained", **shape)
    for panel, batch in zip(axes[0], batches, strict=True):
        for name, style in zip(names, styles(names), strict=True):
            line(panel, [r for r in rows if (r["method"], r["batch"]) == (name, batch)], style)
        panel.set(xscale="log", yscale="log", xlabel="examples, N", title=f"batches of {batch:,}")
        panel.grid(alpha=0.25)
    axes[0][0].set_ylabel("draw and update, mean ms per step")
    axes[0][0].plot((), (), "kx", linestyle="none", label="fails or exceeds the time limit")
    handles, labels = axes[0][0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    made.savefig(path, dpi=130)
    pyplot.close(made)


def styles(names: list[str]) -> list[dict[str, Any]]:
    """Ours in full lines, other weighted draws dashed, draws without weights grey."""
    weighted = iter(COLORS)
    grey = iter(GREYS)
    return [
        {
            "label": name,
            "color": next(grey) if name in UNIFORM else next(weighted),
            "linestyle": ":" if name in UNIFORM else "--" if name in BASELINES else "-",
            "linewidth": 1.6 if name in BASELINES else 2.2,
        }
        for name in names
    ]


def line(panel: Any, rows: list[Row], style: dict[str, Any]) -> None:
    done = sorted((row["n"], value(row, "step_ms")) for row in rows if row["status"] == "done")
    panel.plot(*zip(*done, strict=True) if done else ((), ()), marker="o", markersize=4, **style)
    failed = [row["n"] for row in rows if row["status"] != "done"]
    if done and failed:
        cross = {"marker": "x", "color": style["color"], "markersize": 7}
        panel.plot(done[-1][0] * 1.35, done[-1][1], **cross)
