"""A hub that stalls in the middle of a download: one sentence, soon, whatever it has sent before."""

import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import HfApi, constants, snapshot_download

from pipeline.cli import InputError
from pipeline.models import load as hub
from pipeline.models import load as hub_stalls

COMMIT, NUM_BYTES = "0123456789abcdef0123456789abcdef01234567", 4_000_000
Hub = Callable[[str | None], list[str]]
"""Given where it stalls, None for never, a server begins; returns the list of what is asked of it."""


@pytest.fixture
def hub_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub of one model with one file, which the client is pointed at, with a limit of 0.3 seconds."""
    asked: list[str] = []
    stalls_at: list[str | None] = []
    ended = threading.Event()

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Nothing, where the class would write to standard error."""

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def answer(self) -> None:
            if self.path.startswith("/api/"):
                self.send(json.dumps(self.told()).encode())
                return
            asked.append(self.command)
            if stalls_at == [f"{self.command} header"]:
                ended.wait()
            elif self.command == "HEAD":
                self.send(b"", NUM_BYTES)
            elif stalls_at == ["GET body"]:
                self.send(b"x" * (NUM_BYTES // 2), NUM_BYTES)
                ended.wait()
            else:
                self.send(b"x" * NUM_BYTES)

        def told(self) -> object:
            if "/tree/" in self.path:
                return [{"type": "file", "oid": "a" * 40, "size": NUM_BYTES, "path": "config.json"}]
            siblings = [{"rfilename": "config.json"}]
            return {"_id": "1", "id": "owner/x", "modelId": "owner/x", "sha": COMMIT, "siblings": siblings}

        def send(self, content: bytes, num_bytes: int | None = None) -> None:
            self.send_response(200)
            headers = {"ETag": '"abc"', "X-Repo-Commit": COMMIT, "Content-Type": "application/json"}
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content) if num_bytes is None else num_bytes))
            self.end_headers()
            self.wfile.write(content)
            self.wfile.flush()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    for name in ("HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(constants, name, 10)  # is put back
    monkeypatch.setattr(hub_stalls, "HUB_PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(hub_stalls, "_heard", {})  # hubs of other tests never answered
    monkeypatch.setattr(hub, "HfApi", partial(HfApi, endpoint))
    monkeypatch.setattr(
        hub, "snapshot_download", partial(snapshot_download, endpoint=endpoint, cache_dir=tmp_path / "cache")
    )

    def begin(place: str | None) -> list[str]:
        stalls_at.append(place)
        return asked

    yield begin
    ended.set()
    server.shutdown()


@pytest.mark.parametrize("place", ["HEAD header", "GET header", "GET body"])
def test_a_stall_is_one_sentence_after_one_time_limit(hub_server: Hub, place: str) -> None:
    asked = hub_server(place)
    sentence = (
        r"^the download of owner/x broke off \(nothing came from 127.0.0.1 for 0.3 seconds; HF_HUB_DOWNLOAD_"
        r"TIMEOUT and HF_HUB_ETAG_TIMEOUT set another limit\); run the same command again$"
    )
    with pytest.raises(InputError, match=sentence):
        hub.snapshot("owner/x", None, with_code=False)
    assert asked == (["HEAD"] if place == "HEAD header" else ["HEAD", "GET"])  # nothing a second time


def test_what_does_not_stall_is_downloaded_and_stalls_are_forgotten(
    hub_server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_server(None)
    folder = hub.snapshot("owner/x", None, with_code=False)
    assert (folder / "config.json").stat().st_size == NUM_BYTES
    assert hub_stalls._heard == {}


def test_a_limit_that_the_user_sets_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 60)
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 10)
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "60")
    hub_stalls.end_where_it_stalls()
    limits = constants.HF_HUB_DOWNLOAD_TIMEOUT, constants.HF_HUB_ETAG_TIMEOUT
    assert limits == (60, hub_stalls.HUB_PATIENCE_SECONDS)
    client = hub_stalls.get_session()
    before = client.event_hooks
    hub_stalls.end_where_it_stalls()
    assert client.event_hooks == before  # once is enough
