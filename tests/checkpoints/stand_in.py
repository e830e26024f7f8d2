"""A small Hub on this machine: enough of its API for `huggingface_hub` to list and fetch folders.

The client reads HF_ENDPOINT when it is imported, so it runs in a process of its own (`ask`).
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ROOT = Path(__file__).parents[2]


@dataclass
class StandIn:
    """The server's content, and what it was asked."""

    repositories: dict[str, Path]
    url: str = ""
    log: list[str] = field(default_factory=list)
    """METHOD /path of every request."""
    gated: set[str] = field(default_factory=set)
    hangs_up: bool = False
    """Whether it closes every connection without an answer."""

    def fetched(self, name: str) -> set[str]:
        """The files of a repository whose content was sent."""
        start = f"GET /{name}/resolve/{COMMIT}/"
        return {line.removeprefix(start) for line in self.log if line.startswith(start)}


@contextmanager
def serve(repositories: dict[str, Path], gated: set[str] | None = None) -> Iterator[StandIn]:
    """A Hub with these folders, on a free port, until the block ends."""
    hub = StandIn(repositories, gated=gated or set())
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def ask(url: str, home: Path, script: str, *arguments: str) -> str:
    """What a script prints that runs against the Hub at `url`, with its cache in `home`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    environment |= {"HF_ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "*"}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _handler(hub: StandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer()

        def do_HEAD(self) -> None:
            self._answer()

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.log.append(f"{self.command} {path}")
            if hub.hangs_up:
                self.close_connection = True
                return
            status, body, headers = _respond(hub, path)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

    return Handler


Response = tuple[int, bytes, dict[str, str]]


def _respond(hub: StandIn, path: str) -> Response:
    name = next((name for name in hub.repositories if f"/{name}/" in path), None)
    if name is None:
        return 404, b"{}", {"X-Error-Code": "RepoNotFound"}
    if name in hub.gated:
        return 403, b"{}", {"X-Error-Code": "GatedRepo"}
    folder, rest = hub.repositories[name], path.split(f"/{name}/", 1)[1]
    kind, revision, *inner = rest.split("/")
    if revision not in ("main", COMMIT):
        return 404, b"{}", {"X-Error-Code": "RevisionNotFound"}
    if path.startswith(("/api/models/", "/api/datasets/")):
        return _json(_listing(folder) if kind == "tree" else _info(name, folder))
    file = folder.joinpath(*inner)
    if not file.is_file():
        return 404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}
    body = file.read_bytes()
    return 200, body, {"ETag": f'"{_hash(body)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "none"}


def _json(values: Any) -> Response:
    return 200, json.dumps(values).encode(), {"Content-Type": "application/json"}


def _info(name: str, folder: Path) -> dict[str, Any]:
    siblings = [{"rfilename": path} for path in _files(folder)]
    return {"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings, "tags": [], "private": False}


def _listing(folder: Path) -> list[dict[str, Any]]:
    found = {path: (folder / path).read_bytes() for path in _files(folder)}
    return [{"type": "file", "path": path, "size": len(body), "oid": _hash(body)} for path, body in found.items()]


def _files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _hash(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()
