def run_phases(settings: Settings, run: Path) -> int:
    """Train the run, then each phase of PHASES as a run of its own. Return the exit code.

    With --phase, train one phase only, from the last weights of the newest run.
    """
    phase = settings.phase
    if phase > 1 + len(PHASES):
        raise UserError(f"there is no phase {phase}: --phase: add it to PHASES")
    if phase > 1 + settings.phases_done:  # a new run, which is no resumed one
        before = Path(settings.init_from)
        if not settings.init_from:
            newest, before = read_settings({"resume": ""})
            if newest.phases_done != phase - 2:
                raise UserError(
                    f"the newest run is not of phase {phase - 1}: {before}: "
                    "train that phase first, or name its run with --init_from"
                )
        print(f"note: the weights are those of {before}")
        while phase > 1 + settings.phases_done:
            settings = next_phase(settings, before)
    code = run_training(settings, run)
    while code == 0 and not phase and settings.phases_done < len(PHASES):
        settings = next_phase(settings, run)
        run = run.with_suffix(f".{settings.phases_done:02d}")
        code = run_training(settings, run)
    return code


def next_phase(settings: Settings, before: Path) -> Settings:
    """Return the settings of the phase that starts from the last weights of a run."""
    done = settings.phases_done
    return replace(settings, phases_done=done + 1, init_from=str(before), **PHASES[done])
