"""The Hugging Face hub answers within seconds, or counts as out of reach."""

from collections.abc import Callable
from queue import Empty, Queue
from threading import Thread
from typing import TypeVar

Answer = TypeVar("Answer")
HUB_PATIENCE_SECONDS = 8


def hub_answer(question: Callable[[], Answer]) -> Answer:
    """What `question`, a call of the hub's client, returns.

    The client's own time limit begins anew with each address, handshake and retry; this one is for all.

    Raises:
        TimeoutError: no answer within `HUB_PATIENCE_SECONDS`.
        Exception: whatever the client raises.
    """
    answers: Queue[tuple[list[Answer], Exception | None]] = Queue(1)

    def ask() -> None:
        try:
            answers.put(([question()], None))
        except Exception as error:  # noqa: BLE001 (it is raised where the answer is wanted)
            answers.put(([], error))

    Thread(target=ask, daemon=True).start()  # a program that ends does not wait for it
    try:
        answer, error = answers.get(timeout=HUB_PATIENCE_SECONDS)
    except Empty:
        raise TimeoutError(f"no answer within {HUB_PATIENCE_SECONDS} seconds") from None
    if error is not None:
        raise error
    return answer[0]
