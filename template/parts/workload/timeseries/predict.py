"""Forecast with a trained run: a split of the prepared data, or new data, with a plot."""

from __future__ import annotations

import argparse
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.runs import find_run
from .evaluate import (
    add_flags,
    collected,
    new_loader,
    open_run,
    output_path,
    predictions,
    write_output,
)
from .prepare import add_new, new_store

if TYPE_CHECKING:
    import numpy as np

    from ..dataset import Samples

PANELS = 4


def arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `predict`."""
    add_flags(parser, ".npz, and a .png goes beside it", "predictions.npz")
    add_new(parser)


def run(arguments: argparse.Namespace, load: Callable[..., Any]) -> None:
    """Write `prediction` of N windows, `target` if known, `time` of a series' last known row."""
    folder = find_run(arguments.run)
    output = output_path(arguments.output, folder / "predictions.npz", ".npz")
    settings = load(folder / "config.resolved.yaml")
    project, step = open_run(folder, settings, arguments, needs_data=not arguments.input)
    with tempfile.TemporaryDirectory() as temporary:
        if arguments.input:
            new_store(Path(arguments.input), vars(arguments), project.store, Path(temporary))
            loader = new_loader(project, Path(temporary))
        else:
            loader = project.loader(arguments.split)
        samples: Any = loader.samples
        found = collected(predictions(project, loader), "target")
        index = found.pop("index")
        if "time" in samples.store.arrays:
            times = samples.store.arrays["time"].rows()
            found["time"] = times[samples.first - 1 + index]
        picture = plot(found, samples)
    drawing = output.with_suffix(".png")
    write_output(output, found)
    write_output(drawing, picture)
    print(f"{len(index):,} forecasts of step {step} are in {output}, some drawn in {drawing}")


def plot(found: dict[str, np.ndarray], samples: Samples) -> bytes:
    """Some windows: the first target's history if known, what came and what was forecast."""
    import matplotlib
    import numpy as np

    matplotlib.use("Agg")
    from matplotlib import pyplot

    count = min(PANELS, len(samples))
    size = (9, 2.4 * count)
    figure, axes = pyplot.subplots(count, figsize=size, squeeze=False, layout="constrained")
    numbers = np.linspace(0, len(samples) - 1, count).astype(int)
    for axis, number in zip(axes[:, 0], numbers, strict=True):
        past = samples.history(number)
        if past is not None:
            axis.plot(range(1 - len(past), 1), past, color="0.5", label="history")
        for name, color, label in (
            ("target", "black", "came"),
            ("prediction", "tab:orange", "forecast"),
        ):
            if name in found:
                window = found[name][number]
                values = window.reshape(len(window), -1)[:, 0]
                axis.plot(range(1, len(values) + 1), values, color=color, label=label)
        axis.set_title(f"{samples.title}, window {number}", loc="left", fontsize=9)
    axes[0, 0].legend(fontsize=8)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110)
    pyplot.close(figure)
    return file.getvalue()
