"""Links one variant into a folder, to run it in place: `python tools/link.py build/linked
loader=memmap`.

Files with conditions are rendered, so make the links again after an edit of one.
"""

import re
import shutil
import sys
from pathlib import Path

import jinja2
import yaml
from pathspec import GitIgnoreSpec

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "template/project/src/{{ package_name }}"
INCLUDE = re.compile(r"\{% include (.+) %\}\n")
QUESTIONS = yaml.safe_load((ROOT / "copier.yml").read_text(encoding="utf-8"))
ENVIRONMENT = jinja2.Environment(**QUESTIONS["_envops"] | {"undefined": jinja2.StrictUndefined})


def link(folder: Path, **answers: str) -> None:
    """Links one variant into `folder`/src/my_training; questions that `answers` omits are as by
    default."""
    # The defaults of the first two would need the tables.
    answers = {"gpu_family": "any", "gpu": "auto", **answers}
    for name, asked in QUESTIONS.items():
        if "choices" in asked and name not in answers:
            # A default may depend on the answers before it.
            answers[name] = jinja2.Template(str(asked["default"])).render(answers)
    patterns = [jinja2.Template(pattern).render(answers) for pattern in QUESTIONS["_exclude"]]
    excluded = GitIgnoreSpec.from_lines(patterns)
    shutil.rmtree(folder / "src", ignore_errors=True)
    for source_file in PACKAGE.rglob("*.*"):
        if source_file.suffix not in {".py", ".yml", ".jinja"}:
            continue
        path = Path("src/my_training") / source_file.relative_to(PACKAGE)
        path = path.with_name(path.name.removesuffix(".jinja"))
        if excluded.match_file(path):
            continue
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        text = source_file.read_text(encoding="utf-8")
        include = INCLUDE.fullmatch(text)
        if include:
            source_file = ROOT / str(ENVIRONMENT.compile_expression(include[1])(**answers))
            text = source_file.read_text(encoding="utf-8")
        if source_file.suffix == ".jinja":  # it has conditions
            place.write_text(ENVIRONMENT.from_string(text).render(answers), encoding="utf-8")
        else:
            place.symlink_to(source_file)


if __name__ == "__main__":
    link(Path(sys.argv[1]), **dict(argument.split("=", 1) for argument in sys.argv[2:]))
