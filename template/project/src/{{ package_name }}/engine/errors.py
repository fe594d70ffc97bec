"""What users see as a line, never as a traceback: errors that they can fix."""

from __future__ import annotations

import re

PASSWORD = re.compile(r"(:/+)([^/\s]*:\S*|[^/\s]*)@")  # `user:password@` of a URL


class UserError(Exception):
    """Something the user can fix; `__main__` prints it as `error: what: where: what to do`.

    `where` and `remedy` may be empty. Several errors found together are one `UserError` each,
    raised as `UserErrors`.
    """

    code = 2
    reported = False  # another process of the run says it

    def __init__(self, what: str, where: str = "", remedy: str = ""):
        line = ": ".join(filter(None, (what, where, remedy)))
        super().__init__(PASSWORD.sub(r"\1…@", line))
        self.errors: list[UserError] = [self]


class UserErrors(UserError):
    """Several `UserError`s found in one pass, one printed line each."""

    def __init__(self, errors: list[UserError]):
        super().__init__("\n".join(map(str, errors)))
        self.errors = errors


class NonFinite(Exception):
    """A loss or gradient that became nan or inf; `epoch`, `batches` (first, last + 1) and `rank`
    say where."""

    def __init__(self, what: str, step: int, epoch: int, batches: tuple[int, int], rank: int = 0):
        super().__init__(f"the {what} of step {step} is not finite")
        self.what = what  # loss | gradient
        self.step = step
        self.epoch = epoch
        self.batches = batches
        self.rank = rank
