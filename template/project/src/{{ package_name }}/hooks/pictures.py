"""Pictures of what the model does, made at evaluations, for the report and the tracker.

What they show is in `pictures.py` next to `model.py`; without that file there are none. Rank 0
draws them. Apart from the first and the last they take a fiftieth of the run's time together. They
draw no random number of the training, and end no run: what fails is one note.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.files import read_rows, replacing

if TYPE_CHECKING:
    from torch import Tensor

    from ..assemble import Project
    from ..engine.run import Run
    from ..engine.seams import Batch

SHARE = 0.02
FOLDER = "pictures"  # of the run
THERE = (Path(__file__).parents[1] / "pictures.py").exists()


class Hook:
    """What predicts some validation samples and draws them (host sync, at evaluations alone)."""

    trials = False

    def __init__(self) -> None:
        self.begun = time.perf_counter()
        self.spent = 0.0
        self.draws = THERE

    def after_evaluation(self, run: Run, metrics: dict[str, float]) -> None:
        now = time.perf_counter()
        project = run.project
        group = project.distributed
        is_due = self.draws and (self._is_rare(now) or run.progress.step >= run.last_step)
        is_due = group.gather(is_due)[0]  # by rank 0's clock
        takes_part = group.is_main or group.forward_exchanges
        if not is_due or not takes_part:
            return

        was_training = project.model.training
        project.model.eval()
        try:
            self._draw(run, now)
        except (
            Exception
        ) as error:  # of matplotlib, of a `pictures.py` for other data, of a full disk
            self.draws = False
            run.monitor.line(f"note: no more pictures: {type(error).__name__}: {error}")
        finally:
            project.model.train(was_training)
        self.spent += time.perf_counter() - now

    def _is_rare(self, now: float) -> bool:
        return self.spent <= SHARE * (now - self.begun)

    def _draw(self, run: Run, begun: float) -> None:
        step = run.progress.step
        files = draw(run.project, run.validation, run.folder / FOLDER)
        if run.monitor.tracker is not None:
            run.monitor.tracker.show(step, {f"validation/{file.stem}": file for file in files})
        run.monitor.event(step, FOLDER, seconds=time.perf_counter() - begun)


def draw(project: Project, loader: Any, folder: Path) -> list[Path]:
    """Write what `pictures` gives: figures as .png, texts as .md. None on other ranks than 0."""
    from .. import pictures

    batch, answers = predicted(project, loader, pictures)
    if not project.distributed.is_main:
        return []
    files = []
    for name, picture in pictures.pictures(batch, answers, project).items():
        folder.mkdir(exist_ok=True)
        path = folder / f"{name}.{'md' if isinstance(picture, str) else 'png'}"
        with replacing(path) as file:
            if isinstance(picture, str):
                file.write(picture.encode())
            else:
                picture.savefig(file, dpi=110)
        files.append(path)
    return files


def predicted(project: Project, loader: Any, pictures: Any) -> list[Batch]:
    """Return the first `SAMPLES` samples of a loader and what the model says of them, on the CPU.

    They are a batch at least. `pictures.answer(project, batch)` says it where there is one, perhaps
    of a batch's first samples alone; else the model's `predict`.
    """
    import torch

    answer = getattr(pictures, "answer", lambda project, batch: project.model.predict(batch))
    count = 0
    batches: list[Batch] = []
    predictions: list[Batch] = []
    for batch in loader.epoch(0):
        with torch.no_grad(), project.precision.autocast():
            prediction = answer(project, batch)
        present = batch["present"]
        batches.append(present_rows(batch, present))
        predictions.append(present_rows(prediction, present))
        count += int(present.sum())
        if count >= pictures.SAMPLES:
            break
    return [joined(batches), joined(predictions)]


def present_rows(batch: Batch, present: Tensor) -> Batch:
    """Return the rows that are no padding, on the CPU."""
    return {name: values[present[: len(values)]].cpu() for name, values in batch.items()}


def joined(batches: list[Batch]) -> Batch:
    """Return several batches as one."""
    import torch

    return {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}


def report(run: Path) -> list[str]:
    """Return what was drawn last, for report.md."""
    drawn = [row for row in read_rows(run / "events.jsonl") if row.get("event") == FOLDER]
    files = sorted(
        (run / FOLDER).glob("[!.]*"), key=lambda file: (file.suffix != ".png", file.name)
    )
    if not drawn or not files:
        return []
    lines = [f"## Pictures: validation at step {drawn[-1]['step']:,}"]
    for file in files:
        text = f"![{file.stem}]({FOLDER}/{file.name})"
        if file.suffix == ".md":
            text = file.read_text(encoding="utf-8")
        lines += ["", text]
    return lines
