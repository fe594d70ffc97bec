"""Lines for failures that a setting or an installation can fix, by the words of libraries."""

from __future__ import annotations

import re

from ..errors import UserError

KNOWN = {
    "failed to map segment from shared object": (  # in words of the C library
        "a folder of compiled code is on a disk that runs no programs (noexec): {command}: "
        "set TMPDIR and TORCHINDUCTOR_CACHE_DIR to folders on another disk"
    ),
    r"^torch\._(dynamo|inductor).*(Cxx|C compiler)": (  # in words of Inductor or Triton
        "no working C++ compiler found: compile.enabled: "
        "install one, such as g++, or --compile.enabled false"
    ),
    r"^torch\._(dynamo|inductor)": (
        "a block could not be compiled ({first}): compile.enabled: "
        "--compile.enabled false, or --compile.fullgraph false to compile what can be"
    ),
    "operations that require placement changes": (  # DTensor's words
        "this optimizer cannot update sharded weights: optimizer.name: "
        "choose adamw, or run `copier update --defaults -r :current: -d distributed=ddp`"
    ),
    # In words of the operating system, or of torch.
    "No space left on device|Disk quota exceeded|File too large|PytorchStreamWriter failed": (
        "a file could not be written ({first}): {command}: free some space"
    ),
    "Permission denied|Read-only file system|Not a directory": (
        "a file or folder cannot be used ({first}): {command}: check the path, "
        "change its permissions, or use a copy of the folder"
    ),
    "File name too long": "a path is too long ({first:.60}…): {command}: use a shorter one",
    "CUDA driver error": (  # a virtual GPU, or WSL
        "{first}: {command}: try PYTORCH_ALLOC_CONF=expandable_segments:False"
    ),
    "could not create a primitive": (  # oneDNN's words
        "this CPU cannot compute a layer ({first}): training.precision: "
        "choose fp32, or disable autocast for that layer"
    ),
    "deterministic implementation": (
        "{operation} cannot be deterministic: reproducibility.deterministic: "
        "replace the operation, or DETERMINISTIC=0"
    ),
}
"""Lines for failures: by a regular expression of the error's module and a library's words."""


def explain(error: BaseException | None, command: str) -> UserError | None:
    """Return the line for a failure that a user can fix; None for any other error."""
    # After the name of torch's compiler comes what its backend said.
    said = re.sub(r"^.* raised:\n", "", str(error).strip())
    first = said.partition("\n")[0]
    operation = said.partition(" does not have")[0]
    for words, line in KNOWN.items():
        if re.search(words, f"{type(error).__module__}: {error}", re.DOTALL):
            return UserError(line.format(first=first, operation=operation, command=command))
    if isinstance(error, OSError) and "shared object" in first:  # so torch misses libgomp
        remedy = "install it with the packages of the system"
        return UserError(f"{first.partition('.')[0]} cannot be loaded", first, remedy)
    return None
