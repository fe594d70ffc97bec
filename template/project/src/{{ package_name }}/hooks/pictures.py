"""Pictures of what the model does, made at evaluations, for the report and the tracker.

What they show stands in `pictures.py` beside `model.py`; without that file there are none. Rank 0 draws them.
All together they take a fiftieth of the run's time, beside the first and the last. They draw no random number
of the training, and end no run: what fails is one note.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.files import read_rows, replacing

if TYPE_CHECKING:
    from ..assemble import Project
    from ..engine.run import Run
    from ..engine.seams import Batch

SHARE = 0.02
FOLDER = "pictures"  # of the run
THERE = (Path(__file__).parents[1] / "pictures.py").exists()


class Hook:
    """Predicts some validation samples and draws them (host sync, at evaluations alone)."""

    trials = False

    def __init__(self) -> None:
        self.begun, self.spent, self.draws = time.perf_counter(), 0.0, THERE

    def after_evaluation(self, run: Run, metrics: dict[str, float]) -> None:
        project, step, now = run.project, run.progress.step, time.perf_counter()
        group, rare = project.distributed, self.spent <= SHARE * (now - self.begun)
        due = group.gather(self.draws and (rare or step >= run.last_step))[0]  # by rank 0's clock
        if not due or not (group.is_main or group.forward_exchanges):
            return
        was_training = project.model.training
        project.model.eval()
        try:
            files = draw(project, run.validation, run.folder / FOLDER)
            if run.monitor.tracker is not None:
                run.monitor.tracker.show(step, {f"validation/{file.stem}": file for file in files})
            run.monitor.event(step, FOLDER, seconds=time.perf_counter() - now)
        except Exception as error:  # of matplotlib, of a `pictures.py` for other data, of a full disk
            self.draws = False
            run.monitor.line(f"note: no more pictures: {type(error).__name__}: {error}")
        finally:
            project.model.train(was_training)
        self.spent += time.perf_counter() - now


def draw(project: Project, loader: Any, folder: Path) -> list[Path]:
    """Writes what `pictures` gives: figures as .png, texts as .md. None on other ranks than 0."""
    from .. import pictures

    batch, found = predicted(project, loader, pictures)
    files = []
    drawn = pictures.pictures(batch, found, project) if project.distributed.is_main else {}
    for name, picture in drawn.items():
        folder.mkdir(exist_ok=True)
        files.append(folder / f"{name}.{'md' if isinstance(picture, str) else 'png'}")
        with replacing(files[-1]) as file:
            file.write(picture.encode()) if isinstance(picture, str) else picture.savefig(file, dpi=110)
    return files


def predicted(project: Project, loader: Any, pictures: Any) -> list[Batch]:
    """The first `SAMPLES` samples of a loader, a batch at least, and what the model says of them; on the CPU.

    `pictures.answer(project, batch)` says it where there is one, perhaps of a batch's first samples alone;
    else the model's `predict`.
    """
    import torch

    from ..engine.progress import RecurrentState

    recurrent, count, parts = RecurrentState(), 0, []
    answer = getattr(pictures, "answer", lambda project, batch: project.model.predict(batch))
    for batch in loader.epoch(0):
        recurrent.attach(batch)
        with torch.no_grad(), project.precision.autocast():
            found = answer(project, batch)
        recurrent.state = found.pop("carry", None)
        batch.pop("carry", None)
        there = batch["present"]
        parts.append([{name: x[there[: len(x)]].cpu() for name, x in y.items()} for y in (batch, found)])
        count += int(there.sum())
        if count >= pictures.SAMPLES:
            break
    return [{name: torch.cat([part[name] for part in y]) for name in y[0]} for y in zip(*parts, strict=True)]


def report(run: Path) -> list[str]:
    """What was drawn last, for report.md."""
    drawn = [row for row in read_rows(run / "events.jsonl") if row.get("event") == FOLDER]
    files = sorted((run / FOLDER).glob("[!.]*"), key=lambda file: (file.suffix != ".png", file.name))
    if not drawn or not files:
        return []
    lines = [f"## Pictures: validation at step {drawn[-1]['step']:,}"]
    for file in files:
        text = file.suffix == ".md"
        lines += ["", file.read_text(encoding="utf-8") if text else f"![{file.stem}]({FOLDER}/{file.name})"]
    return lines
