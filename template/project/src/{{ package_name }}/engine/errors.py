"""The one exception that users see as a line, never as a traceback."""

from __future__ import annotations


class UserError(Exception):
    """Something the user can mend; `__main__` prints it as `error: what: where: what to do`.

    `where` and `remedy` may be empty. Several mistakes found together are one `UserError` each,
    raised as `UserErrors`.
    """

    code = 2
    reported = False  # another process of the run says it

    def __init__(self, what: str, where: str = "", remedy: str = ""):
        super().__init__(": ".join(part for part in (what, where, remedy) if part))


class UserErrors(UserError):
    """Several `UserError`s found in one pass, one printed line each."""

    def __init__(self, errors: list[UserError]):
        super().__init__("\n".join(str(error) for error in errors))
        self.errors = errors
