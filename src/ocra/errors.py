"""The errors a person using the package can cause, each a sentence that says what to do."""


class OcraError(Exception):
    """Something outside the program is wrong: a file, a download, a checkpoint. The program exits with 1."""


class UsageError(OcraError):
    """The program was asked for something it cannot do. The program exits with 2."""
