def run_phases(settings: Settings, run: Path) -> int:
    """Train the run, then each phase of PHASES as a run of its own. Return the exit code."""
    code = run_training(settings, run)
    while code == 0 and settings.phase < len(PHASES):
        changes = PHASES[settings.phase]
        settings = replace(settings, phase=settings.phase + 1, init_from=str(run), **changes)
        run = run.with_suffix(f".{settings.phase:02d}")
        code = run_training(settings, run)
    return code
