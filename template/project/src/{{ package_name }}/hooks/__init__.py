"""Hooks of the training loop: each file here with a class `Hook` is one, found by its name alone.

`Hook` in `engine/interfaces.py` lists the methods of a hook and when each is called. A hook has any
of them. They run on every rank, in the order of the files' names. For example:

    class Hook:
        def after_step(self, run):
            if run.monitor.row and run.monitor.row["loss"] > 100:
                run.monitor.alert(run.progress.step, "loss", "the loss is above 100")

A method that reads a value from the GPU (`.item()`) waits for the GPU. If a hook fails on one rank
only, `run.fail(error)` ends the run on all ranks.

A file may also have a class `Sections`, the hook's settings, and a function `report(run)`, which
gets the folder of a run and returns lines for report.md: see `watch.py`, in projects that have it.
The comment above a setting in config.yaml is its help. `engine/plugins.py` finds all of these.
"""
