"""The one exception a user is meant to see."""


class UserError(Exception):
    """What is wrong, where, and what to do about it: one line, shown without a traceback."""
