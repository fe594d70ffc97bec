"""Hooks of the training loop: each file here with a class `Hook` is one, found by its name alone.

It has any of these methods. They run on every rank, in the order of the files' names; `run` is
`engine.run.Run`:

    class Hook:
        trials = False  # leave it out of the short runs of benchmark and tune

        def start(self, run): ...  # each phase, after its checkpoint is restored
        def before_step(self, run): ...  # ahead of a step's first forward
        def after_step(self, run):  # run.progress.step, run.monitor.row, run.project.model
            if run.monitor.row and run.monitor.row["loss"] > 100:
                run.monitor.alert(run.progress.step, "loss", "the loss is above 100")
        def evaluating(self, run): ...  # a context manager around an evaluation
        def after_evaluation(self, run, metrics): ...  # what it adds to them stands in the row
        def state_dict(self): ...  # for checkpoints: plain values and tensors
        def load_state_dict(self, state): ...  # on resume, and from phase to phase
        def close(self, run): ...  # at the end, also after an error

A method that reads a value from the GPU (`.item()`) makes it wait; what one rank alone finds ends
the run by `run.fail(error)`. Settings of a hook are a class `Sections`, its lines of report.md a
function `report(run)`, which gets the run's folder: `watch.py` has both, in projects with it.
`engine/plugins.py` finds them. The comment above a setting in config.yaml is its help.

Each phase has hooks of its own.
"""
