"""What users see as a line, never as a traceback: errors that they can fix."""

from __future__ import annotations

import os
import re
import sys
from functools import cache

# One process alone is rank 0: the rank of an earlier launch may be left in the environment.
RANK = os.environ.get("RANK", "0") if os.environ.get("WORLD_SIZE", "1") != "1" else "0"
# Of a URL: `user:password` before the @; what follows the `?`, without punctuation after the URL.
SECRET = re.compile(
    r"(:/+)(?:[^/\s]*:\S*|[^/\s]*)(?=@)|((?::/+|@)[^\s?]*\?|\?[\w.-]+=)\S+?(?=\W*(?:\s|$))"
)


class UserError(Exception):
    """Something the user can fix; `__main__` prints it as `error: what: where: what to do`.

    `where` and `remedy` may be empty. Several errors found together are one `UserError` each,
    raised as `UserErrors`.
    """

    code = 2
    reported = False  # another process of the run says it

    def __init__(self, what: str, where: str = "", remedy: str = ""):
        line = ": ".join(filter(None, (what, where, remedy)))
        super().__init__(without_secrets(line))
        self.errors: list[UserError] = [self]


class UserErrors(UserError):
    """Several `UserError`s found in one pass, one printed line each.

    All processes of a run find the same, so rank 0 prints them.
    """

    reported = RANK != "0"

    def __init__(self, errors: list[UserError]):
        super().__init__("\n".join(map(str, errors)))
        self.errors = errors


class NonFinite(Exception):
    """A loss or a gradient became nan or inf. step: from 1. rank: the first one that saw it."""

    def __init__(self, kind: str, step: int, rank: int = 0):
        super().__init__(f"the {kind} of step {step} is not finite")
        self.kind = kind  # loss | gradient
        self.step = step
        self.rank = rank


@cache
def note(text: str) -> None:
    """Print, once, what the user should read though nothing is wrong.

    All processes of a run know it, so rank 0 prints it.
    """
    if RANK == "0":
        print(f"note: {without_secrets(text)}", file=sys.stderr)


def without_secrets(text: str) -> str:
    """Return a text without the passwords and tokens of the addresses in it."""
    return SECRET.sub(r"\1\2…", text)
