"""Examples of the model's predictions, made at evaluations, for the report and the tracker.

`examples.py` next to `model.py` decides what they show; without that file there are none. They are
those of the best evaluation so far, whose checkpoint `evaluate` loads. Rank 0 draws them. Except
for the first and the best one of a finished run, they take at most a fiftieth of the run's time.
They change no random numbers of the training. If they fail, a note is printed and training
continues.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.files import read_rows, replacing, write_text

if TYPE_CHECKING:
    from ..engine.interfaces import Batch
    from ..engine.run.project import Project
    from ..engine.run.run import Run

TIME_FRACTION = 0.02  # of the run's time: beyond it, an evaluation gets no examples
FOLDER = "examples"  # in the folder of the run


class Hook:
    """Predicts some validation samples and draws them (host sync, only at evaluations)."""

    trials = False

    def __init__(self) -> None:
        self.start_time = time.perf_counter()
        self.seconds = 0.0  # spent on examples
        self.enabled = (Path(__file__).parents[1] / "examples.py").exists()
        self.is_slow = False  # a function `answer` may take longer than an evaluation
        self.undrawn: tuple[int, list[Batch]] | None = None  # the step and its predictions

    def after_evaluation(self, run: Run, metrics: dict[str, float]) -> None:
        group = run.project.distributed
        by_rank = group.gather_objects(self._is_due(run, metrics["loss"]))
        takes_part = group.is_main or group.forward_exchanges
        if by_rank[0] and takes_part:  # by rank 0's clock
            self._guarded(run, self._predict)

    def close(self, run: Run) -> None:
        if run.is_done:
            self._guarded(run, self._draw)

    def _is_due(self, run: Run, loss: float) -> bool:
        """Whether to predict: the loss is a new best one, and there is time, or it is the last."""
        has_time = not self.is_slow or self._is_rare() or run.step >= run.num_steps
        return self.enabled and has_time and loss < run.progress.best_loss

    def _is_rare(self) -> bool:
        return self.seconds <= TIME_FRACTION * (time.perf_counter() - self.start_time)

    def _guarded(self, run: Run, work: Callable[[Run], None]) -> None:
        """Do the work; if it fails, in matplotlib, your `examples.py` or on a full disk, stop."""
        start_time = time.perf_counter()
        try:
            work(run)
        except Exception as error:
            self.enabled = False
            self.undrawn = None
            run.log.line(f"note: no more examples: {type(error).__name__}: {error}")
        self.seconds += time.perf_counter() - start_time

    def _predict(self, run: Run) -> None:
        """Predict the samples; draw them now if there is time, otherwise at the end."""
        from .. import examples

        self.is_slow = hasattr(examples, "answer")
        is_rare = self._is_rare()
        model = run.project.model
        was_training = model.training
        model.eval()
        try:
            self.undrawn = (run.step, predict_samples(run.project, run.validation))
        finally:
            model.train(was_training)
        if is_rare:
            self._draw(run)

    def _draw(self, run: Run) -> None:
        """Draw the predictions that are not drawn yet."""
        if self.undrawn is None:
            return
        step, samples = self.undrawn
        self.undrawn = None
        if not run.project.distributed.is_main:
            return
        files = draw(run.project, samples, run.folder / FOLDER)
        run.log.send_files(run.step, files)
        run.log.event(step, FOLDER)


def draw(project: Project, samples: list[Batch], folder: Path) -> list[Path]:
    """Write what `examples` returns for a batch and its predictions: figures as .png, texts as .md.

    Return the files.
    """
    from .. import examples

    batch, answers = samples
    files = []
    for name, example in examples.examples(batch, answers, project).items():
        folder.mkdir(exist_ok=True)
        if isinstance(example, str):
            path = folder / f"{name}.md"
            write_text(path, example)
        else:
            path = folder / f"{name}.png"
            with replacing(path) as file:
                example.savefig(file, dpi=110)
        files.append(path)
    return files


def predict_samples(project: Project, loader: Any) -> list[Batch]:
    """Return the first `SAMPLES` samples of a loader and their predictions.

    Both are on the CPU. If `examples.py` has a function `answer(project, batch)`, it makes the
    predictions, maybe only for the first samples of a batch; otherwise the model's `predict` does.
    """
    from .. import examples
    from ..engine.run.evaluation import joined, predictions, present_rows

    answer = None
    if hasattr(examples, "answer"):
        answer = partial(examples.answer, project)
    count = math.ceil(examples.SAMPLES / loader.order.batch_size)
    batches: list[Batch] = []
    answers: list[Batch] = []
    for batch, predicted in islice(predictions(project, loader, answer), count):
        present = batch["present"]
        batches.append(present_rows(batch, present))
        answers.append(present_rows(predicted, present))
    first = slice(examples.SAMPLES)
    return [
        {name: values[first] for name, values in joined(both).items()}
        for both in (batches, answers)
    ]


def report_lines(run: Path) -> list[str]:
    """Return lines for report.md that show the newest examples."""
    drawn = [row for row in read_rows(run / "events.jsonl") if row.get("event") == FOLDER]
    if not drawn:
        return []
    lines = [f"## Examples: validation at step {drawn[-1]['step']:,}"]
    for file in sorted((run / FOLDER).glob("*.png")):
        lines += ["", f"![{file.stem}]({FOLDER}/{file.name})"]
    for file in sorted((run / FOLDER).glob("*.md")):
        lines += ["", file.read_text(encoding="utf-8")]
    return lines
