"""TensorBoard: event files in the run folder; nothing leaves the machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .tracking import Guarded


class Tracker(Guarded):
    """Curves and settings of one run, however often it is resumed."""

    REMEDY = "free some space for the run folder"

    def connect(self, step: int | None) -> str:
        from torch.utils.tensorboard import SummaryWriter

        folder = self.folder / "tensorboard"
        # A resumed run writes the records after its step again; TensorBoard hides the earlier ones.
        purge_step = step + 1 if step else None
        self.writer = SummaryWriter(str(folder), purge_step=purge_step)
        if step == 0:
            indented = self.settings.to_yaml().replace("\n", "\n    ")
            self.writer.add_text("config", "    " + indented, 0)
        return f"{folder}: run `tensorboard --logdir {self.folder.parent}`"

    def send(self, step: int, row: Mapping[str, float]) -> None:
        for name, value in row.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()  # a killed run loses no record

    def send_file(self, step: int, name: str, file: Path) -> None:
        if file.suffix == ".md":
            self.writer.add_text(name, file.read_text(encoding="utf-8"), step)
        else:
            from matplotlib.image import imread

            self.writer.add_image(name, imread(file), step, dataformats="HWC")
        self.writer.flush()

    def finish(self, failed: bool) -> None:
        self.writer.close()
