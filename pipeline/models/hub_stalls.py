"""A download from the hub that stalls ends within seconds; the client would wait and ask anew for minutes."""

import os
import time
from collections.abc import Iterator

import httpx
from huggingface_hub import constants, get_session

from pipeline.text.hub_answer import HUB_PATIENCE_SECONDS

_LIMITS = ("HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT")
_LONGEST_PAUSE_SECONDS = 10
"""What the client waits at most before it asks again; asked later, it is another download."""
_heard: dict[str, float] = {}
"""Address of each answer that is awaited -> when it last brought something, by the monotonic clock."""


class StalledError(Exception):
    """The hub sent nothing for so long as the client waits. Of no kind that it asks again for."""


def end_where_it_stalls() -> None:
    """Have the hub's client of this process raise `StalledError` where it would ask for the same once more.

    Its limits, which begin anew with each piece that arrives, become `HUB_PATIENCE_SECONDS` unless the
    environment sets them.
    """
    for name in _LIMITS:
        if name not in os.environ:
            setattr(constants, name, HUB_PATIENCE_SECONDS)
    client = get_session()
    hooks = client.event_hooks
    if _refuse_repetition not in hooks["request"]:
        client.event_hooks = {
            "request": [*hooks["request"], _refuse_repetition], "response": [*hooks["response"], _listen],
        }  # fmt: skip


def _refuse_repetition(request: httpx.Request) -> None:
    address, now = _address(request), time.monotonic()
    silence = now - _heard.get(address, now)
    _heard[address] = now
    if HUB_PATIENCE_SECONDS <= silence < _patience() + _LONGEST_PAUSE_SECONDS:
        del _heard[address]
        raise StalledError(
            f"nothing came from {request.url.host} for {_patience():g} seconds; HF_HUB_DOWNLOAD_TIMEOUT and"
            " HF_HUB_ETAG_TIMEOUT set another limit"
        )


def _listen(response: httpx.Response) -> None:
    address = _address(response.request)
    _heard[address] = time.monotonic()
    assert isinstance(response.stream, httpx.SyncByteStream)
    response.stream = _Heard(response.stream, address)


def _patience() -> float:
    return max(getattr(constants, name) for name in _LIMITS)


def _address(request: httpx.Request) -> str:
    """Without what is signed anew for each request."""
    return f"{request.url.host}:{request.url.port}{request.url.path}"


class _Heard(httpx.SyncByteStream):
    """The bytes of an answer; when they came is written down."""

    def __init__(self, stream: httpx.SyncByteStream, address: str) -> None:
        self._stream, self._address = stream, address

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._stream:
            _heard[self._address] = time.monotonic()
            yield piece
        _heard.pop(self._address, None)

    def close(self) -> None:
        """Give the connection back."""
        self._stream.close()
