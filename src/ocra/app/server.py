"""Serving the page: to this machine only unless told otherwise, no telemetry, no file written to disk."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import signal
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import Any

from ocra.app.looking import load_models, sources_of
from ocra.app.studio import Studio
from ocra.app.uploads import Uploads
from ocra.errors import OcraError, UsageError

LOOPBACK = "127.0.0.1"
THIS_MACHINE = ("localhost", LOOPBACK, "[::1]")
FIRST_PORT, PORTS = 7860, 100
UPLOAD_HEADER = "x-ocra-upload"
"""No web site may send it to another without asking, so that none can fill the quota of uploads."""


def serve(
    weights: Sequence[str], host: str = LOOPBACK, port: int | None = None, open_browser: bool = False
) -> None:
    """Serve the page until interrupted."""
    studio = Studio(load_models(weights), uploads := Uploads(), sources_of(weights))
    with tempfile.TemporaryDirectory(prefix="ocra-app-") as folder:
        _set_environment(folder)
        try:
            from starlette.middleware import Middleware
            from starlette.middleware.trustedhost import TrustedHostMiddleware

            from ocra.app.page import Page, style, theme
        except ImportError as error:
            raise OcraError(f"The page needs Gradio ({error}): pip install 'ocra-vision[app]'.") from None
        chosen = free_port(host, port)
        middleware = Middleware(TrustedHostMiddleware, allowed_hosts=known_names(host))
        Page(studio).blocks.launch(
            server_name=host,
            server_port=chosen,
            inbrowser=open_browser,
            prevent_thread_lock=True,
            quiet=True,
            share=False,
            ssr_mode=False,
            pwa=False,
            mcp_server=False,
            enable_monitoring=False,
            run_history=False,
            footer_links=[],
            app_kwargs={
                "middleware": [middleware],
                "routes": [*upload_routes(uploads), *save_routes(studio)],
            },
            favicon_path=Path(__file__).parent / "icon.svg",
            theme=theme(),
            head=f"<style>{style()}</style>",
        )
        print(f"OCRA is at {address(host, chosen)} (Ctrl+C ends it)", flush=True)
        _wait()


def upload_routes(uploads: Uploads) -> list[Any]:
    """Where the page sends files; Gradio's own place for them, which writes to the disk, is closed."""
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Route

    async def refuse(_: Request) -> Response:
        return PlainTextResponse("Files are taken by the page only.", 403)

    async def receive(request: Request) -> Response:
        """Answer with the token of a file sent as the body, or with a sentence."""
        if UPLOAD_HEADER not in request.headers:
            return await refuse(request)
        length = request.headers.get("content-length", "")
        size = int(length) if length.isascii() and length.isdecimal() and len(length) < 16 else 0
        try:
            token = uploads.reserve(request.client.host if request.client else "", size)
        except OcraError as error:
            return PlainTextResponse(str(error), 413)
        content = bytearray()
        with contextlib.suppress(ClientDisconnect):
            async for chunk in request.stream():
                content += chunk
        if len(content) != size:
            uploads.drop(token)
            return PlainTextResponse("The file did not arrive whole; try again.", 400)
        uploads.fill(token, bytes(content))
        return PlainTextResponse(token)

    return [
        Route("/ocra/upload", receive, methods=["POST"]),
        Route("/gradio_api/upload", refuse, methods=["POST"]),
    ]


def save_routes(studio: Studio) -> list[Any]:
    """Where the page gets files of what it shows: drawn in a thread, so that no action has to wait."""
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Route

    async def send(request: Request) -> Response:
        token, column, what = (request.path_params[name] for name in ("token", "column", "what"))
        try:
            name, content = await run_in_threadpool(studio.save, token, column, what)
        except OcraError as error:
            return PlainTextResponse(str(error), 503)
        return Response(content, media_type="application/octet-stream", headers={"x-ocra-name": name})

    return [Route("/ocra/save/{token}/{column:int}/{what}", send)]


def _wait() -> None:
    """Return when the program is asked to end, so that the temporary folder is removed in every case."""
    ended = Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with contextlib.suppress(KeyboardInterrupt):
        while not ended.wait(1):  # an endless wait could not be interrupted on Windows
            pass


def _set_environment(folder: str) -> None:
    """What Gradio reads from the environment when it is imported."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.environ["GRADIO_TEMP_DIR"] = str(Path(folder) / "gradio")
    # Gradio asks its own server whether it is up; a proxy for the internet could not answer that.
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), "localhost", LOOPBACK]))


def free_port(host: str, port: int | None) -> int:
    """The port asked for, or the first free one from 7860."""
    nowhere = f"This machine has no address '{host}'; --host takes 127.0.0.1 or 0.0.0.0."
    try:
        socket.getaddrinfo(host, None)
    except (socket.gaierror, UnicodeError):
        raise UsageError(nowhere) from None
    for candidate in [port] if port is not None else range(FIRST_PORT, FIRST_PORT + PORTS):
        try:
            with socket.create_server((host, candidate)) as server:
                return int(server.getsockname()[1])
        except OverflowError:
            raise UsageError(f"{candidate} is not a port; choose one from 1024 to 65535.") from None
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise UsageError(nowhere) from None
            reason = error.strerror or str(error)
            if port is not None:
                raise OcraError(
                    f"Cannot serve on {host} port {port}: {reason}. Choose another --port."
                ) from None
    raise OcraError(f"Ports {FIRST_PORT} to {FIRST_PORT + PORTS - 1} are all in use; choose one with --port.")


def known_names(host: str) -> list[str]:
    """The names under which the page answers; any, unless only this machine can reach it.

    Otherwise a web site could point a name of its own at this machine, and read the page through the
    visitor's browser (DNS rebinding).
    """
    addresses = {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    if all(ipaddress.ip_address(number).is_loopback for number in addresses):
        return [*THIS_MACHINE, host]
    return ["*"]


def address(host: str, port: int) -> str:
    """What to type into the browser."""
    shown = LOOPBACK if host == "0.0.0.0" else f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}"
