def run_phases(settings: Settings, run: Path) -> int:
    """Train the run, then each phase of PHASES as a run of its own. Return the exit code.

    With --phase, train one phase only, from the last weights of the newest run.
    """
    if settings.phase > 1 + len(PHASES):
        raise UserError(f"there is no phase {settings.phase}: --phase: add it to PHASES")
    if settings.phase > 1 + settings.phases_done:  # a new run, which is no resumed one
        newest = max(Path("runs").glob("*/settings.json"), default=run).parent
        before = Path(settings.init_from or newest)
        while settings.phase > 1 + settings.phases_done:
            settings = next_phase(settings, before)
    code = run_training(settings, run)
    while code == 0 and not settings.phase and settings.phases_done < len(PHASES):
        settings = next_phase(settings, run)
        run = run.with_suffix(f".{settings.phases_done:02d}")
        code = run_training(settings, run)
    return code


def next_phase(settings: Settings, before: Path) -> Settings:
    """Return the settings of the phase that starts from the last weights of a run."""
    done = settings.phases_done
    return replace(settings, phases_done=done + 1, init_from=str(before), **PHASES[done])
