"""Ending when asked: Ctrl-C and SIGTERM end a program within two seconds, whatever it is doing.

Python runs its own handlers between two of its instructions, so a signal waits while native code runs: a
tokenizer that trains, a long query. A thread that the signal wakes at once ends the process where the main
thread has not done so in time. Whoever saves first (training) sets handlers of its own, and is left alone.
"""

import os
import signal
import sys
import threading
import time
from types import FrameType

SECONDS = 1.5
"""From the signal to the end of the process, at most: many times what cleaning up takes."""
_SENTENCES = {
    signal.SIGINT: "interrupted; run the same command again to go on",
    signal.SIGTERM: "ended by SIGTERM; run the same command again to go on",
}
_is_ending = threading.Event()
_has_ended = threading.Event()


class Terminated(KeyboardInterrupt):
    """SIGTERM; like Ctrl-C it passes every `except Exception`, and `finally` cleans up."""


def listen(program: str) -> None:
    """From now on SIGINT and SIGTERM end this process in one sentence.

    Args:
        program: its name, as it was typed.
    """
    for number in _SENTENCES:
        signal.signal(number, _raise)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=_forget)
    threading.Thread(target=_end_in_time, args=(reader, program), daemon=True).start()


def finish() -> None:
    """The work is done or given up; from now on signals interrupt the interpreter's own end no more."""
    _is_ending.set()
    _has_ended.set()
    for number in _SENTENCES:  # the interpreter gives back to the system, at its end, all but ignored signals
        if signal.getsignal(number) is _raise:
            signal.signal(number, signal.SIG_IGN)


def ending_of(interrupt: KeyboardInterrupt) -> tuple[int, str]:
    """The exit code, 130 for SIGINT and 143 for SIGTERM as a shell has them, and the sentence."""
    return _ending_of(signal.SIGTERM if isinstance(interrupt, Terminated) else signal.SIGINT)


def _ending_of(number: signal.Signals) -> tuple[int, str]:
    return 128 + number, _SENTENCES[number]


def _raise(number: int, frame: FrameType | None) -> None:
    if not _is_ending.is_set():  # a second Ctrl-C must not end the cleaning up that the first began
        _is_ending.set()
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _end_in_time(reader: int, program: str) -> None:
    exit_code, sentence = _ending_of(_next_signal(reader))
    time.sleep(SECONDS)
    if not _has_ended.is_set():
        # Not by sys.stderr, whose lock the main thread may hold.
        os.write(2, f"{program}: {sentence}\n".encode(errors="backslashreplace"))
    if "multiprocessing" in sys.modules:
        for child in sys.modules["multiprocessing"].active_children():
            child.kill()
    os._exit(exit_code)


def _next_signal(reader: int) -> signal.Signals:
    """Waits for a signal that is still ours to answer."""
    while True:
        number = signal.Signals(os.read(reader, 1)[0])
        if signal.getsignal(number) is _raise:
            return number


def _forget() -> None:
    """In a forked child: its parent says when it is to end."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
