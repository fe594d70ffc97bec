"""Examples of the model's predictions, made at evaluations, for the report and the tracker.

`examples.py` next to `model.py` decides what they show; without that file there are none. Rank 0
draws them. Except for the first and the last, they take at most a fiftieth of the run's time. They
change no random numbers of the training. If they fail, a note is printed and training continues.
"""

from __future__ import annotations

import math
import time
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.files import read_rows, replacing, write_text

if TYPE_CHECKING:
    from ..engine.interfaces import Batch
    from ..engine.project import Project
    from ..engine.run import Run

TIME_FRACTION = 0.02  # of the run's time: beyond it, an evaluation gets no examples
FOLDER = "examples"  # in the folder of the run


class Hook:
    """Predicts some validation samples and draws them (host sync, only at evaluations)."""

    trials = False

    def __init__(self) -> None:
        self.start_time = time.perf_counter()
        self.seconds = 0.0  # spent on examples
        self.enabled = (Path(__file__).parents[1] / "examples.py").exists()

    def after_evaluation(self, run: Run, metrics: dict[str, float]) -> None:
        now = time.perf_counter()
        group = run.project.distributed
        is_rare = self.seconds <= TIME_FRACTION * (now - self.start_time)
        is_last = run.progress.step >= run.last_step
        is_due = group.gather_objects(self.enabled and (is_rare or is_last))[0]  # by rank 0's clock
        takes_part = group.is_main or group.forward_exchanges
        if not is_due or not takes_part:
            return

        model = run.project.model
        was_training = model.training
        model.eval()
        try:
            files = draw(run.project, run.validation, run.folder / FOLDER)
        except Exception as error:  # in matplotlib or your `examples.py`, or from a full disk
            self.enabled = False
            run.monitor.line(f"note: no more examples: {type(error).__name__}: {error}")
            return
        finally:
            model.train(was_training)
        seconds = time.perf_counter() - now
        self.seconds += seconds
        run.monitor.send_files(run.progress.step, files)
        run.monitor.event(run.progress.step, FOLDER, seconds=seconds)


def draw(project: Project, loader: Any, folder: Path) -> list[Path]:
    """Write what `examples` returns: figures as .png, texts as .md. Only rank 0 writes them."""
    from .. import examples

    batch, answers = predict_samples(project, loader, examples)
    if not project.distributed.is_main:
        return []
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


def predict_samples(project: Project, loader: Any, examples: Any) -> list[Batch]:
    """Return the first `SAMPLES` samples of a loader, at least a batch, and their predictions.

    Both are on the CPU. If `examples.py` has a function `answer(project, batch)`, it makes the
    predictions, maybe only for the first samples of a batch; otherwise the model's `predict` does.
    """
    from ..engine.evaluation import joined, predictions, present_rows

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
    return [joined(batches), joined(answers)]


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
