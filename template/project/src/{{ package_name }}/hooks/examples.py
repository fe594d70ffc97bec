"""Examples of the model's predictions, made at evaluations, for the report and the tracker.

`examples.py` next to `model.py` decides what they show; without that file there are none. They are
drawn where the loss is the best so far, while there is time for it, and at the last step. Rank 0
draws them. They change no random numbers of the training. If they fail, training continues with an
alert.
"""

from __future__ import annotations

import math
import time
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ..engine.files import read_rows, replacing, write_text

if TYPE_CHECKING:
    from ..engine.interfaces import Batch
    from ..engine.run.run import Run

FREE_SECONDS = 2.0  # for examples, in any run
TIME_FRACTION = 0.02  # of the run's time, in addition: beyond it, an evaluation gets none
FOLDER = "examples"  # in the folder of the run


class Hook:
    """Predicts some validation samples and draws them (host sync, only at evaluations)."""

    trials = False

    def __init__(self) -> None:
        self.start_time = time.perf_counter()
        self.seconds = 0.0  # spent on examples
        self.enabled = (Path(__file__).parents[1] / "examples.py").exists()

    def after_evaluation(self, run: Run, metrics: dict[str, float]) -> None:
        group = run.project.distributed
        start_time = time.perf_counter()
        most_seconds = FREE_SECONDS + TIME_FRACTION * (start_time - self.start_time)
        has_time = self.seconds <= most_seconds or run.step >= run.num_steps
        is_best = metrics["loss"] < run.progress.best_loss
        is_due = group.gather_objects(self.enabled and is_best and has_time)
        takes_part = group.is_main or group.forward_exchanges
        if not takes_part or not is_due[0]:  # by rank 0's clock
            return
        try:
            draw(run)
        except Exception as error:  # in matplotlib, your `examples.py`, or on a full disk
            text = f"no examples of predictions: {type(error).__name__}: {error}"
            run.log.alert(run.step, "examples", text)
        self.seconds += time.perf_counter() - start_time


def draw(run: Run) -> None:
    """Write what `examples` returns for a batch and its predictions: figures as .png, texts as .md.

    Every rank may have to predict; only rank 0 writes.
    """
    from .. import examples

    batch, predicted = predict_samples(run)
    if not run.project.distributed.is_main:
        return
    folder = run.folder / FOLDER
    folder.mkdir(exist_ok=True)
    files = []
    for name, example in examples.examples(batch, predicted, run.project).items():
        if isinstance(example, str):
            path = folder / f"{name}.md"
            write_text(path, example)
        else:
            path = folder / f"{name}.png"
            with replacing(path) as file:
                example.savefig(file, dpi=110)
        files.append(path)
    for tracker in run.log.trackers:
        tracker.show(run.step, files)
    run.log.event(run.step, FOLDER)


def predict_samples(run: Run) -> tuple[Batch, Batch]:
    """Return the first batches of the validation split and their predictions, on the CPU.

    They have at least `SAMPLES` samples. If `examples.py` has a function `answer(project, batch)`,
    it makes the predictions, maybe only for the first samples of a batch; otherwise the model's
    `predict` does.
    """
    from .. import examples
    from ..engine.run.evaluation import joined, predictions

    project = run.project
    predict = project.model.predict
    if hasattr(examples, "answer"):
        predict = partial(examples.answer, project)
    num_batches = math.ceil(examples.SAMPLES / run.validation.order.batch_size)
    project.model.eval()
    try:
        pairs = list(islice(predictions(project, run.validation, predict=predict), num_batches))
    finally:
        project.model.train()
    batches, predicted = zip(*pairs, strict=True)
    return joined(batches), joined(predicted)


def report_lines(run: Path) -> list[str]:
    """Return lines for report.md that show the newest examples."""
    drawn = [row for row in read_rows(run / "events.jsonl") if row.get("event") == FOLDER]
    if not drawn:
        return []
    lines = [f"## Examples: validation at step {drawn[-1]['step']:,}"]
    folder = run / FOLDER
    lines += [f"\n![{file.stem}]({FOLDER}/{file.name})" for file in sorted(folder.glob("*.png"))]
    lines += [f"\n{file.read_text(encoding='utf-8')}" for file in sorted(folder.glob("*.md"))]
    return lines
