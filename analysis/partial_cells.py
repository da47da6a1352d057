"""What a notebook's kernel runs where partial results may be read: every table and figure then says so."""

from IPython.core.getipython import get_ipython

from pipeline.results.partial import allow_partial, partial_note


def tell_below_every_cell() -> None:
    """Allow partial results in this kernel, and print what was read in part below every cell from then on."""
    allow_partial()
    shell = get_ipython()
    assert shell is not None, "only a notebook's kernel calls this"
    shell.events.register("post_run_cell", _tell)


def _tell(*_: object) -> None:
    if note := partial_note():
        print(note)  # noqa: T201
