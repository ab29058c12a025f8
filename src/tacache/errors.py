"""What can go wrong, by the noun it concerns. Messages say what is wrong and what to do."""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class TACacheError(Exception):
    """Base of all errors of this package."""

    def __str__(self) -> str:
        """Return the message, which may quote a file: what a terminal would act on is escaped."""
        return "\n".join(map(printable, super().__str__().split("\n")))


class ProfileError(TACacheError):
    """A profile cannot be made, read, merged or resampled."""


class PlanError(TACacheError):
    """A plan cannot be made, read or followed."""


class HostError(TACacheError):
    """What runs the model does not fit the plan, or misbehaves."""


class StorageError(TACacheError, OSError):
    """A file cannot be written, as on a full or read-only disk."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: 1 evaluation, 13 evaluations."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def printable(text: object) -> str:
    """Return the text, with characters escaped that a terminal would act on."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in str(text)
    )


def unknown(what: str, name: str, known: Iterable[str]) -> HostError:
    """Return the error about a name that is not among the known ones, with the one meant."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return HostError(f"{what} {name!r}" + (f" (meant {close[0]!r}?)" if close else ""))


def first_line(error: BaseException) -> str:
    """Return what a library's error says, without the paragraphs after it."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextmanager
def named(job: object) -> Iterator[None]:
    """Name the sample in what the block raises; errors that are not ours become HostErrors."""
    try:
        yield
    except TACacheError as error:
        raise type(error)(f"{job}: {error}") from error
    except Exception as error:
        raise HostError(f"{job}: {error}") from error
