# -----------------------------------------------------------------------------
# Command line

# Environment variables that stand for the flag of the same name.
ENVIRONMENT = [
    "SEED",
    "DETERMINISTIC",
    "USE_AMP",
    "NUM_WORKERS",
    "PIN_MEMORY",
    "PREFETCH_FACTOR",
    "PERSISTENT_WORKERS",
    "ALLOW_UNSAFE_DATALOADER",
]


def read_switch(text: str) -> bool:
    """Return True for 1, true, on and yes, and False for 0, false, off and no."""
    try:
        return ConfigParser.BOOLEAN_STATES[text.lower()]
    except KeyError:
        raise argparse.ArgumentTypeError(f"'{text}' is neither on nor off: use 1 or 0") from None


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        # The third word of `unrecognized arguments: --widht=3` may resemble a flag.
        similar = difflib.get_close_matches(
            re.split("[ =]", message)[2].lower(), self._option_string_actions
        )
        raise UserError(f"{message}: see {', '.join(similar) or '--help'}")


def parse(arguments: list[str]) -> dict:
    """Return what the user gave, as flags or environment variables; a flag outranks the other."""
    # SUPPRESS leaves out flags that were not given, since the dataclass has the defaults.
    parser = Parser(usage=__doc__, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    add = parser.add_argument
    add("--resume", nargs="?", const="", help="resume the newest run, or this one")
    text = "measure what all optimizations gain here together, each of them alone, or this one"
    add("--benchmark", nargs="?", const="all", choices=["all", "each", *OFF], help=text)
    add("--no-optimize", "--no_optimize", action="store_true", help="all optimizations off")
    add(
        "--use-amp",
        "--use_amp",
        type=lambda text: "auto" if read_switch(text) else "fp32",
        dest="precision",
        help="0: fp32; 1: auto",
    )
    for name, details in DETAILS.items():
        # Accept both --max_steps and --max-steps, and --deterministic as well as --deterministic 1.
        flags = sorted({f"--{name}", f"--{name.replace('_', '-')}"})
        default = getattr(Settings, name)
        options: dict = {"type": type(default), "choices": details.get("choices")}
        if isinstance(default, bool):
            options = {"nargs": "?", "const": True, "type": read_switch}
        add(*flags, help=f"{details.get('help', '')} (default: {default})", **options)

    for name in filter(os.environ.get, ENVIRONMENT):
        flag = f"--{name.lower()}"
        if flag in parser._option_string_actions:
            arguments = [f"{flag}={os.environ[name]}", *arguments]
        else:
            print(f"note: {name} has no effect: this script has no DataLoader for it")
    return vars(parser.parse_args(arguments))


def read_settings(given: dict) -> tuple[Settings, Path]:
    """Return the settings and the folder of the run."""
    resume = given.pop("resume", None)
    if given.pop("no_optimize", False):
        given = OFF | given
    if resume is None:
        return Settings(**given), Path("runs", f"{datetime.now():%Y%m%d-%H%M%S-%f}")

    path = Path(resume, "settings.json")
    if not resume:
        path = max(Path("runs").glob("*/settings.json"), default=path)
    try:
        settings = Settings(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"no run to resume ({error}): {path}: check --resume, or train first"
        ) from None
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
            benchmark(settings, benchmarked)
            return 0
        return run_training(settings, run)
    except UserError as error:
        message = str(error)
    except OSError as error:
        message = f"{error}: check the path and the free space; --resume continues a run"
    except (MemoryError, RuntimeError) as error:
        # Python's name, and the words of CUDA, of its libraries, and of PyTorch on a CPU
        words = "MemoryError|out of memory|ALLOC_FAILED|allocate memory"
        if not re.search(words, repr(error)):
            raise
        message = (
            "out of memory: lower --batch_size (and raise --gradient_accumulation_steps as much, "
            "for the same result), or use a smaller model or less data"
        )
    # In one line, and without the password of an address.
    message = re.sub(r"/\S*:\S*@", "/…@", " ".join(message.split()))
    print(f"error: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
