"""The Hugging Face hub answers within seconds, or counts as out of reach."""

from collections.abc import Callable
from queue import Empty, Queue
from threading import Thread
from typing import TypeVar

Answer = TypeVar("Answer")
HUB_PATIENCE_SECONDS = 8


def hub_answer(question: Callable[[], Answer], patience_seconds: float | None = None) -> Answer:
    """What `question`, a call of the hub's client, returns.

    The client's own time limit begins anew with each address, handshake and retry; this one is for all.

    Args:
        question: a call.
        patience_seconds: None: `HUB_PATIENCE_SECONDS`.

    Raises:
        TimeoutError: no answer within them.
        Exception: whatever the client raises.
    """
    patience_seconds = patience_seconds or HUB_PATIENCE_SECONDS
    answers: Queue[tuple[list[Answer], Exception | None]] = Queue(1)

    def ask() -> None:
        try:
            answers.put(([question()], None))
        except Exception as error:  # noqa: BLE001 (it is raised where the answer is wanted)
            answers.put(([], error))

    Thread(target=ask, daemon=True).start()  # a program that ends does not wait for it
    try:
        answer, error = answers.get(timeout=patience_seconds)
    except Empty:
        raise TimeoutError(f"no answer within {patience_seconds:g} seconds") from None
    if error is not None:
        raise error
    return answer[0]
