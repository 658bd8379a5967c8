"""What a run leaves behind and shows: config, versions, progress.csv, TensorBoard events, curves.png, terminal."""

from __future__ import annotations

import csv
import importlib.metadata
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

# Columns of progress.csv that every run has, in this order; the task's own metrics follow.
_COLUMNS = (
    "iteration", "env_steps", "seconds", "env_steps_per_second", "episodes", "mean_return", "mean_length",
    "policy_loss", "value_loss", "entropy", "kl", "learning_rate", "std",
)  # fmt: skip
_PLAIN_LINE_EVERY_S = 60.0


class RunLog:
    """Writes a run's files and shows its progress.

    Args:
        run_dir: The run's folder.
        config: The run's settings, plain values.
        device: The device in words.
        iterations: Number of iterations of the whole run.
        resumed_at: Iterations done before, when a run goes on: later rows in progress.csv are dropped.
        console: Where progress goes.
    """

    def __init__(
        self, run_dir: Path, config: dict[str, Any], device: str, iterations: int, resumed_at: int, console: Console
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.run_dir = run_dir
        self.console = console
        self._csv_path = run_dir / "progress.csv"
        self._rows = _read_rows(self._csv_path, resumed_at) if resumed_at else []
        _write_json(run_dir / "config.json", config)
        _write_json(run_dir / "versions.json", versions(device))
        self._write_rows()
        self._tensorboard = SummaryWriter(
            str(run_dir / "tensorboard"), purge_step=resumed_at + 1 if resumed_at else None
        )
        self._iterations = iterations
        self._last_line_time = 0.0
        self._seconds_before = float(self._rows[-1]["seconds"]) if self._rows else 0.0
        self._start = time.perf_counter()
        self._last_time = self._start
        self._last_env_steps = int(self._rows[-1]["env_steps"]) if self._rows else 0
        self._progress: Progress | None = None
        if console.is_terminal:
            self._progress = Progress(
                TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                TextColumn("{task.fields[figures]}"), console=console,
            )  # fmt: skip
            self._task = self._progress.add_task("", total=iterations, completed=resumed_at, figures="")
            self._progress.start()

    def iteration(self, iteration: int, env_steps: int, figures: dict[str, float]) -> None:
        """Records one iteration."""
        now = time.perf_counter()
        row = {
            "iteration": iteration,
            "env_steps": env_steps,
            "seconds": round(self._seconds_before + now - self._start, 3),
            "env_steps_per_second": round((env_steps - self._last_env_steps) / (now - self._last_time), 1),
            **figures,
        }
        self._last_time, self._last_env_steps = now, env_steps
        new_columns = set(row) - set(self._columns())
        self._rows.append(
            {name: format(value, ".6g") if isinstance(value, float) else str(value) for name, value in row.items()}
        )
        if new_columns:
            self._write_rows()
        else:
            with self._csv_path.open("a", newline="") as file:
                csv.DictWriter(file, self._columns(), restval="").writerow(self._rows[-1])
        for name, value in row.items():
            self._tensorboard.add_scalar(name, value, iteration)
        self._show(row)

    def _show(self, row: dict[str, Any]) -> None:
        speed = f"{row['env_steps_per_second']:,.0f} env-steps/s"
        finished = [
            f"{name.replace('_', ' ')} {row[name]:.2f}" for name in ("mean_return", "mean_length") if name in row
        ]
        text = ", ".join([*finished, speed])
        if self._progress is not None:
            self._progress.update(self._task, completed=row["iteration"], figures=text)
            return
        now = time.perf_counter()
        if now - self._last_line_time >= _PLAIN_LINE_EVERY_S or row["iteration"] == self._iterations:
            self._last_line_time = now
            self.console.print(f"iteration {row['iteration']}/{self._iterations}: {text}")

    def draw(self) -> Path:
        """Draws curves.png from all rows so far; its path."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        panels = [
            name for name in ("mean_return", "mean_length", "success", "value_loss", "kl") if name in self._columns()
        ]
        panels.append("env_steps_per_second")
        columns = 3
        figure = Figure(figsize=(4.2 * columns, 2.9 * -(-len(panels) // columns)), layout="constrained")
        FigureCanvasAgg(figure)
        for index, name in enumerate(panels):
            axes = figure.add_subplot(-(-len(panels) // columns), columns, index + 1)
            points = [(float(row["env_steps"]), float(row[name])) for row in self._rows if row.get(name)]
            if points:
                axes.plot(*zip(*points, strict=True), linewidth=1.2)
            axes.set(title=name.replace("_", " "), xlabel="environment steps")
            axes.grid(alpha=0.3)
        path = self.run_dir / "curves.png"
        figure.savefig(path, dpi=90)
        return path

    def close(self) -> None:
        """Ends the display and flushes the files."""
        if self._progress is not None:
            self._progress.stop()
        self._tensorboard.close()

    def _columns(self) -> list[str]:
        extra = sorted({name for row in self._rows for name in row} - set(_COLUMNS))
        return [*_COLUMNS, *extra]

    def _write_rows(self) -> None:
        temporary = self._csv_path.with_suffix(".csv.tmp")
        with temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, self._columns(), restval="")
            writer.writeheader()
            writer.writerows(self._rows)
        temporary.replace(self._csv_path)


def package_version(package: str) -> str | None:
    """The installed version, None where a package is not installed (this one may be used from a folder)."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions(device: str) -> dict[str, Any]:
    """What a result depends on beside the settings: versions and hardware."""
    import torch

    packages = ("genesis-vec", "genesis-world", "quadrants", "gymnasium", "torch", "numpy")
    return {
        "python": platform.python_version(),
        **{name: package_version(name) for name in packages},
        "system": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cpu_count": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "device": device,
    }


def _read_rows(path: Path, last_iteration: int) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        rows = [{name: value for name, value in row.items() if value} for row in csv.DictReader(file)]
    return [row for row in rows if int(row["iteration"]) <= last_iteration]


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
