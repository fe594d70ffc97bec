# -----------------------------------------------------------------------------
# Command line

# Environment variables that set the flag of the same name; USE_AMP=0 is --precision fp32.
ENVIRONMENT = [
    "SEED",
    "DETERMINISTIC",
    "NUM_WORKERS",
    "PIN_MEMORY",
    "PREFETCH_FACTOR",
    "PERSISTENT_WORKERS",
    "ALLOW_UNSAFE_DATALOADER",
]


def read_switch(text: str, name: str = "command line") -> bool:
    if text.lower() in ("1", "true", "on", "yes"):
        return True
    if text.lower() in ("0", "false", "off", "no"):
        return False
    raise UserError(f"'{text}' is neither on nor off: {name}: use 1 or 0")


def read_environment(defaults: dict) -> dict:
    """Return the settings that environment variables give, as texts and switches."""
    given: dict = {}
    for name in filter(os.environ.get, ENVIRONMENT):
        key = name.lower()
        if key in defaults:
            is_switch = isinstance(defaults[key], bool)
            given[key] = read_switch(os.environ[name], name) if is_switch else os.environ[name]
    if os.environ.get("USE_AMP"):
        given["precision"] = "auto" if read_switch(os.environ["USE_AMP"], "USE_AMP") else "fp32"
    return given


def make_parser(defaults: dict) -> argparse.ArgumentParser:
    # SUPPRESS leaves out flags that were not given, since the dataclass has the defaults.
    parser = argparse.ArgumentParser(
        usage=__doc__,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        exit_on_error=False,
    )
    add = parser.add_argument
    add("--resume", nargs="?", const="", help="resume the newest run, or this one")
    text = "measure what all optimizations gain here together, or each of them alone"
    add("--benchmark", nargs="?", const="all", choices=["all", "each"], help=text)
    add("--no-optimize", "--no_optimize", action="store_true", help="all optimizations off")
    source = inspect.getsource(RunSettings) + inspect.getsource(Settings)
    texts = {**OPTIMIZATIONS, **dict(re.findall(r"(\w+): .*  # (.*)", source))}
    for name, default in defaults.items():
        # Accept both --max_steps and --max-steps, and --deterministic as well as --deterministic 1.
        flags = sorted({f"--{name}", f"--{name.replace('_', '-')}"})
        options: dict[str, Any] = {"type": type(default), "choices": CHOICES.get(name)}
        if isinstance(default, bool):
            options = {"nargs": "?", "const": True, "type": read_switch}
        add(*flags, help=f"{texts[name]} (default: {default})".replace("%", "%%"), **options)
    return parser


def parse(arguments: list[str]) -> dict:
    """Return what the user gave, as flags or environment variables; a flag outranks the other."""
    defaults = asdict(Settings())
    parser = make_parser(defaults)
    parser.set_defaults(**read_environment(defaults))
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        similar = difflib.get_close_matches(unknown[0], parser._option_string_actions)
        remedy = f"did you mean {similar[0]}?" if similar else "see --help"
        raise UserError(f"unknown flag: {unknown[0]}: {remedy}")
    return vars(given)


def read_settings(given: dict) -> tuple[Settings, Path]:
    """Return the settings and the folder of the run."""
    resume = given.pop("resume", None)
    if given.pop("no_optimize", False):
        given = {**OFF, **given}
    if resume is None:
        return Settings(**given), Path("runs", f"{datetime.now():%Y%m%d-%H%M%S-%f}")

    path = Path(resume, "settings.json")
    if not resume:
        path = max(Path("runs").glob("*/settings.json"), default=path)
    if not os.path.exists(path):  # also if the name is too long
        raise UserError(f"no run to resume: {path} does not exist: check --resume")
    try:
        settings = Settings(**json.loads(path.read_bytes()))
    except (ValueError, TypeError):
        raise UserError(f"the file is damaged: {path}: restore it, or start a new run") from None
    for name, value in given.items():
        saved = getattr(settings, name)
        if value != saved:
            raise UserError(f"cannot resume with a different value: --{name}: use {saved}")
    return settings, path.parent


def main(arguments: list[str]) -> int:
    """Return the exit code: 2 for an error, 128 + the number of a signal."""
    try:
        given = parse(arguments)
        benchmarked = given.pop("benchmark", None)
        settings, run = read_settings(given)
        if benchmarked:
            benchmark(settings, each=benchmarked == "each")
            return 0
        return run_training(settings, run)
    except (UserError, argparse.ArgumentError) as error:
        message = str(error)
    except OSError as error:
        message = f"{error}: check the path and the free space; --resume continues a run"
    except (MemoryError, RuntimeError) as error:
        # the words of CUDA, of its libraries, and of PyTorch on a CPU
        words = re.search("out of memory|ALLOC_FAILED|allocate memory", str(error))
        if not words and not isinstance(error, MemoryError):
            raise
        message = (
            "out of memory: lower --batch_size (and raise --gradient_accumulation_steps as much, "
            "for the same result), or use a smaller model or less data"
        )
    # without the password of an address
    message = re.sub(r"/\S*:\S*@", "/…@", message)
    print(f"error: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
