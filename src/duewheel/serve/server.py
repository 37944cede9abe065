"""Runs the app with uvicorn, until a signal stops it."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import structlog
import uvicorn

from duewheel.clock import SystemClock
from duewheel.config.keys_and_defaults import ServeSection
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError
from duewheel.osutil.priority_and_heap import do_without_pandas
from duewheel.serve.access import Access, warn_of_doubts
from duewheel.serve.app import make_app
from duewheel.serve.connections import IDLE_S, Connection, Listener, require_internals
from duewheel.serve.gate import HEADER_BYTES_MAX
from duewheel.serve.service import Service

log = structlog.get_logger(__name__)

# A stop ends within 5 s: the calls of Kafka have CALLS_S, then all responses the rest of STOP_S;
# the producers are closed within a second (ops/changes/producer_pool.py).
CALLS_S = 2.0
STOP_S = 3


class _Server(uvicorn.Server):
    """A server that ends like duewheel's other processes: soon, with exit code 0 after a signal.

    uvicorn's own raises the signal again once it has stopped, and waits for every thread.
    """

    should_exit: bool  # its loop reads this ten times a second

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        require_internals(self.config, self.server_state)
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().call_later(CALLS_S, self._service.end_waits)
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        def stop(*_: object) -> None:
            self.should_exit = True

        numbers = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, stop) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def run_serve(settings: Settings) -> None:
    """Serves the API until SIGTERM or SIGINT.

    Raises:
        ConfigError: a token cannot be read, the address cannot be listened on, or uvicorn does not
            fit.
    """
    do_without_pandas()  # the first list would import it
    serve = settings.serve
    access = Access.load(serve)
    warn_of_doubts(access, settings)
    app = make_app(settings, SystemClock(), access)
    with listening(serve) as listener:
        config = uvicorn.Config(
            app,
            loop="asyncio",
            http=partial(Connection, listener),  # type: ignore[arg-type]  # it is only called
            ws="none",
            log_config=None,
            access_log=False,  # its lines have ids and keys
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=HEADER_BYTES_MAX,
            timeout_keep_alive=int(IDLE_S),
            timeout_graceful_shutdown=STOP_S,
            ssl_certfile=serve.tls_cert_file,
            ssl_keyfile=serve.tls_key_file,
        )
        scheme = "http" if serve.tls_cert_file is None else "https"
        host, port = listener.getsockname()[:2]
        name = f"[{host}]" if ":" in host else host
        log.info(
            "serving",
            url=f"{scheme}://{name}:{port}",
            changes="off" if access.change is None else "with a token",
            reads="open" if access.read is None else "with a token",
        )
        _Server(config, app.state.service).run(sockets=[listener])
    log.info("stopped")


def listening(serve: ServeSection) -> Listener:
    """Opens the socket that the server listens on.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in serve.host else socket.AF_INET
    try:
        opened = socket.create_server((serve.host, serve.port), family=family)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(
            f"serve.port: cannot listen on {serve.host}:{serve.port}: {reason}"
        ) from error
    listener = Listener(opened.detach())
    # Its connections inherit it, and asyncio sets it for sockets of another kind alone: without it
    # the body of a response waits 40 ms for the client's acknowledgement of the head.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
