"""Errors that are the user's to mend: one sentence saying what was wrong, where, and what would be right."""

import errno
from collections.abc import Iterable

_OF_PATHS = {
    errno.ENOENT: "does not exist",
    errno.ENOTDIR: "lies below a file, where a folder is wanted; name another path",
    errno.EEXIST: "is in the way and no folder; name another path, or move it away",
    errno.EISDIR: "is a folder, and a file is wanted; name another path, or move it away",
    errno.ELOOP: "is a loop of links; name another path, or remove the link",
    errno.ENAMETOOLONG: "is too long a name; name a shorter path",
    errno.EROFS: "lies on a read-only file system; name another path",
    errno.EACCES: "is not yours to read or write; name another path, or have its permissions changed",
    errno.EPERM: "is not yours to read or write; name another path, or have its permissions changed",
    errno.ESTALE: "has vanished from the file server; run the same command again",
    errno.EMFILE: "is one file too many to be open at once; raise `ulimit -n`",
}
"""What a path that the system refused is, and what would be right."""
RENAMED = {"dependency_recovery": "found_dependencies", "plan_synthetic": "study"}
"""What an earlier version called a program, its results and its notebook -> what they are called now."""
_OF_MEMORY = ("DefaultCPUAllocator", "Cannot allocate memory", "CUDA error: out of memory")
"""What torch's plain errors say where there is no memory: for tensors, for a map of a file, on a GPU."""


class InputError(Exception):
    """Bad input. A stage prints its message as one line and exits with code 2."""


class UnfinishedError(InputError):
    """Something from outside ended the work: what is written stays, and the same command goes on from it."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed: of Python, NumPy, Arrow or torch, on a CPU or an accelerator."""
    # torch's class is known by its name, and torch is not imported here.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in _OF_MEMORY)


def unknown_name(kind: str, name: str, valid_names: Iterable[str]) -> InputError:
    """The error for a `kind` (such as "rule") called `name`, naming the nearest of `valid_names`."""
    from difflib import get_close_matches  # late: it is slow to load, and a name is seldom wrong

    if now := RENAMED.get(name.replace("-", "_")):
        return InputError(f"unknown {kind} '{name}'; it is called '{now}' now")
    valid_names = sorted(valid_names)
    nearest = get_close_matches(name, valid_names, n=1, cutoff=0.4)
    hint = f"did you mean '{nearest[0]}'?" if nearest else f"valid: {', '.join(valid_names)}"
    return InputError(f"unknown {kind} '{name}'; {hint}")


def omegaconf_sentence(error: Exception) -> str:
    """OmegaConf's message and the field it is about, without its dump of types."""
    lines = [line.strip() for line in str(error).splitlines()]
    fields = [line for line in lines[1:] if line.startswith("full_key:")]
    return " ".join([lines[0], *(f"({line.replace('full_key: ', '')})" for line in fields)])


def os_error_sentence(error: OSError) -> str | None:
    """What the system refused, where, and what would be right; None for what is not about files or output."""
    path = error.filename if error.filename2 is None else error.filename2
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"no space left on the device while writing {path or 'the output'};"
            " free some and run the same command again"
        )
    if error.errno == errno.EBADF and path is None:
        return "standard output is closed, so there is nowhere to write to; leave it open, or say > /dev/null"
    if error.errno not in _OF_PATHS:
        return None
    # pyarrow names the path in its message only.
    return f"{path} {_OF_PATHS[error.errno]}" if path else str(error)
