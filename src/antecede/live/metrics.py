"""The HTTP pages of a server: ``/metrics`` (figures for Prometheus), ``/health`` (health, for load balancers),
``/live`` (whether the server still works or should be restarted) and ``/ready`` (whether the server has started).

The server measures how long reactions (handler calls) take, but only if it has these pages. All other figures are read
from the server's state on request. The package ``prometheus-client`` (extra ``metrics``) writes the text; a server
without the pages does not import it.

The pages have their own port, and are off by default. If the port is given without a host, they are on the loopback
interface. They show the state of a server, never the content of a message, and accept no commands. If the server has an
access file, it checks who sends a request. Each connection has one request. A request has at most a few kilobytes and
may take at most a few seconds.

A separate thread with its own event loop serves the pages. So ``/live`` and ``/ready`` are answered even while the
server's event loop is blocked. ``/metrics`` and ``/health`` read the server's state in the server's event loop.

The pages are already served while the server reads its log, which can take minutes. During this time the server is live
but not ready, and ``/metrics`` and ``/health`` have nothing to show yet.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from threading import Thread
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, cast

from antecede import limits
from antecede.access import Authoriser, Refusal
from antecede.access.audit import REFUSED
from antecede.durations import Durations
from antecede.errors import UsageError
from antecede.live.server import ServerRuntime
from antecede.live.tcp import disconnect, peer_text
from antecede.server.admission import UNKNOWN_CALLER, page_refusal
from antecede.topology import Address

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


class Collector:
    """All metrics of a server, computed on request."""

    def __init__(self, runtime: ServerRuntime, times: Durations) -> None:
        self._runtime = runtime
        self._times = times
        self._started = monotonic()

    def collect(self) -> "Iterator[Metric]":
        yield from self._domains()
        yield from self._links()
        yield from self._engine()
        yield from self._log()
        yield from self._state()

    def _domains(self) -> "Iterator[Metric]":
        consumers = self._runtime.machine.channel.consumers
        for name, help_, attribute in _traffic:
            carried = {(domain,): getattr(one.traffic, attribute) for domain, one in consumers.items()}
            yield _counter(name, help_, carried, "domain")
        held = {(domain,): len(one.order.held()) for domain, one in consumers.items()}
        yield _gauge("held_messages", "Messages that are held now.", held, "domain")
        unposted = {(domain,): len(one.order.unposted()) for domain, one in consumers.items()}
        yield _gauge("unposted_copies", "Copies that the order has not sent yet.", unposted, "domain")

    def _links(self) -> "Iterator[Metric]":
        links = {
            (domain, peer): link
            for domain, consumer in self._runtime.machine.channel.consumers.items()
            for peer, link in consumer.links.items()
        }
        frames = {place: link.unacknowledged for place, link in links.items()}
        yield _gauge("unacknowledged_frames", "Frames that a peer has not acknowledged.", frames, "domain", "peer")
        peers = self._runtime.core.peering.peers
        ready = {(name,): int(peer.ready) for name, peer in peers.items()}
        yield _gauge("peer_connected", "Whether there is a connection to a peer.", ready, "peer")
        again = {(name,): max(0, peer.connections - 1) for name, peer in peers.items()}
        yield _counter("peer_reconnections", "Connections to a peer after the first.", again, "peer")
        stopped = {place: int(place in self._runtime.machine.stopped) for place in links}
        yield _gauge("link_stopped", "Whether a link stopped because data was lost.", stopped, "domain", "peer")

    def _engine(self) -> "Iterator[Metric]":
        runtime = self._runtime
        engine, retries, lives = runtime.machine.engine, runtime.driver.retries, runtime.reactions.host.lives
        agents = clients = 0
        for address, mailbox in engine.mailboxes.items():
            if lives(address):
                agents += len(mailbox)
            else:
                clients += len(mailbox)
        depths = {("agents",): agents, ("clients",): clients}
        yield _gauge("mailbox_letters", "Letters that were delivered and are not handled yet.", depths, "of")
        yield _counter("reactions", "Reactions that succeeded or ended with a dead letter.", retries.done)
        yield _counter("reaction_failures", "Reactions that raised, each try counted.", retries.failed)
        yield _counter("letters_died", "Letters that became dead.", retries.dead + runtime.core.sessions.dead)
        yield _gauge("dead_letters_kept", "Dead letters that wait for an operator.", len(engine.dead))
        yield _gauge("open_questions", "Questions of agents without an answer yet.", len(engine.asks))
        yield _gauge("timers", "Timers that are set.", len(runtime.machine.timers))
        yield _histogram("reaction_seconds", "How long a reaction took.", self._times)

    def _log(self) -> "Iterator[Metric]":
        store = self._runtime.store
        figures = store.figures
        yield _histogram("commit_seconds", "Time to write and sync a commit group of the log.", figures.commits)
        yield _histogram("fdatasync_seconds", "Time to sync a commit group.", figures.syncs)
        yield _counter("log_records", "Records appended to the log, ever.", store.last)
        yield _gauge("log_pending_bytes", "Bytes appended and not yet durable.", store.pending_bytes)
        yield _gauge("log_bytes", "Disk space of the log.", store.log_bytes)
        at = self._started if figures.snapshot_at is None else figures.snapshot_at
        age = monotonic() - at
        yield _gauge("snapshot_age_seconds", "Seconds since the newest snapshot, or the start.", age)
        behind = store.last - figures.snapshot_upto
        yield _gauge("snapshot_records_behind", "Records to replay after a crash now.", behind)

    def _state(self) -> "Iterator[Metric]":
        runtime = self._runtime
        connections = {
            ("peers",): sum(peer.ready for peer in runtime.core.peering.peers.values()),
            ("clients",): len(runtime.core.sessions),
            ("all incoming",): len(runtime.core.entry.connections),
        }
        yield _gauge("connections", "Connections that are open.", connections, "of")
        health = runtime.operations.health()
        states = {(state,): int(state == health) for state in HEALTHS}
        yield _gauge("health", "1 for the state that the server is in.", states, "state")
        info = {(runtime.name, runtime.epoch, f"{runtime.store.incarnation:016x}"): 1}
        yield _gauge("server_info", "The identity of this server.", info, "server", "epoch", "incarnation")


HEALTHS = ("ok", "overloaded", "link stopped", "in trouble", "not yet part", "stopping")
"""All results of :meth:`antecede.server.operations.Operations.health`."""

_traffic = (
    ("messages_sent", "Messages of the domain's order that were sent here.", "messages_sent"),
    ("messages_delivered", "Messages of the domain's order that were delivered here.", "messages_delivered"),
    ("letters_sent", "Letters in the messages that were sent.", "letters_sent"),
    ("letters_delivered", "Letters in the messages that were delivered.", "letters_delivered"),
    ("packets_held", "Packets that had to wait.", "held"),
    ("stamp_bytes", "Bytes of the stamps of all packets that left.", "stamp_bytes"),
)

_Samples = float | Mapping[Any, float]
"""The values of a Prometheus metric: a single value, or one value for each combination of the metric's labels."""


def _counter(name: str, help_: str, samples: _Samples, *labels: str) -> "Metric":
    from prometheus_client.metrics_core import CounterMetricFamily

    return _filled(CounterMetricFamily(f"antecede_{name}", help_, labels=labels), samples)


def _gauge(name: str, help_: str, samples: _Samples, *labels: str) -> "Metric":
    from prometheus_client.metrics_core import GaugeMetricFamily

    return _filled(GaugeMetricFamily(f"antecede_{name}", help_, labels=labels), samples)


def _filled(family: Any, samples: _Samples) -> "Metric":
    for key, value in (samples if isinstance(samples, Mapping) else {(): samples}).items():
        family.add_metric(key, value)
    return cast("Metric", family)


def _histogram(name: str, help_: str, durations: Durations) -> "Metric":
    from prometheus_client.metrics_core import HistogramMetricFamily

    buckets = [("+Inf" if end == float("inf") else repr(end), count) for end, count in durations.cumulative()]
    return HistogramMetricFamily(f"antecede_{name}", help_, buckets=buckets, sum_value=durations.seconds)


class MetricsPage:
    """The HTTP pages of one server: ``/metrics``, ``/health``, ``/live`` and ``/ready``."""

    def __init__(self, authoriser: Authoriser) -> None:
        """``authoriser``: decides who may see which page."""
        try:
            from prometheus_client import CollectorRegistry, ProcessCollector
        except ImportError:
            raise UsageError("--metrics needs the package prometheus-client: install antecede[metrics]") from None
        self._authoriser = authoriser
        self._runtime: ServerRuntime | None = None
        """The server, or None while the server still reads its log."""
        self._registry = CollectorRegistry()
        self._times = Durations()
        ProcessCollector(registry=self._registry)
        self._home = asyncio.get_running_loop()
        self._thread: Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = asyncio.Event()
        self._open = 0
        self._sockets: Sequence[Any] = ()

    async def start(self, address: Address) -> None:
        """Serve the pages at this address."""
        listens: Future[None] = Future()
        self._thread = Thread(target=lambda: asyncio.run(self._serve(address, listens)), name="metrics", daemon=True)
        self._thread.start()
        try:
            await asyncio.wrap_future(listens)
        except OSError as error:
            where = f"{address.host}:{address.port}"
            raise UsageError(f"cannot serve metrics on {where}: {error.strerror or error}") from None

    def show(self, runtime: ServerRuntime) -> None:
        """Show the state of this server from now on, and measure how long its reactions take. Call this method when the
        server has read its log."""
        runtime.reactions.host.time_reactions(perf_counter, self._times)
        self._registry.register(Collector(runtime, self._times))
        self._runtime = runtime
        runtime.when_copied = self.copied

    async def stop(self) -> None:
        """Stop serving the pages."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._ended.set)
            await asyncio.to_thread(self._thread.join, _stop_seconds)

    def copied(self) -> None:
        """Let this process have no part in the pages: it is a copy of the server's process."""
        for one in self._sockets:
            disconnect(one.fileno())

    # In the thread of the page.

    async def _serve(self, address: Address, listens: "Future[None]") -> None:
        try:
            listener = await asyncio.start_server(
                self._answer, address.host, address.port, limit=limits.metrics_request_bytes_max
            )
        except OSError as error:
            listens.set_exception(error)
            return
        self._sockets = listener.sockets
        self._loop = asyncio.get_running_loop()
        listens.set_result(None)
        watching = self._loop.create_task(self._watch())
        await self._ended.wait()
        watching.cancel()
        self._sockets = ()
        listener.close()

    async def _watch(self) -> None:
        """Write a log message when the server stops working, and when it works again."""
        known = False
        while True:
            if (runtime := self._runtime) is not None:
                trouble = runtime.pulse.trouble()
                if trouble and not known:
                    runtime.log.error("not-live", reason=trouble)
                elif known and not trouble:
                    runtime.log.info("live-again")
                known = bool(trouble)
            await asyncio.sleep(_watch_seconds)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= limits.metrics_connections_max:
                async with asyncio.timeout(limits.hello_seconds_max):
                    head = await reader.readuntil(b"\r\n\r\n")
                    remote = peer_text(writer.get_extra_info("peername"))
                    writer.write(await self._respond(head, remote))
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, RuntimeError):
            # A RuntimeError: the server's event loop is closed.
            pass
        finally:
            self._open -= 1
            writer.close()

    async def _respond(self, head: bytes, remote: str) -> bytes:
        """Return the whole response to a request."""
        lines = head.decode("latin-1").split("\r\n")
        method, _, rest = lines[0].partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return _response("405 Method Not Allowed", "text/plain", b"GET only\n", method)
        refusal = self._refusal(path, lines, remote) if path in _pages else None
        if refusal is not None:
            status = "401 Unauthorized" if refusal.code == UNKNOWN_CALLER else "403 Forbidden"
            return _response(status, "text/plain", f"{refusal.reason}\n".encode(), method)
        if path not in _pages:
            return _response("404 Not Found", "text/plain", b"/metrics, /health, /live or /ready\n", method)
        runtime = self._runtime
        if runtime is None:
            status = "200 OK" if path == "/live" else "503 Service Unavailable"
            return _response(status, "text/plain", b"the server is reading its log\n", method)
        if path in ("/live", "/ready"):
            trouble = runtime.pulse.trouble() if path == "/live" else runtime.unready
            status = "503 Service Unavailable" if trouble else "200 OK"
            return _response(status, "text/plain", f"{trouble or 'ok'}\n".encode(), method)
        if path == "/metrics":
            accepts = next((line[7:].strip() for line in lines[1:] if line[:7].lower() == "accept:"), "")
            made = asyncio.run_coroutine_threadsafe(self.metrics(accepts, method), self._home)
        else:
            made = asyncio.run_coroutine_threadsafe(_health(runtime, method), self._home)
        return await asyncio.wrap_future(made)

    def _refusal(self, path: str, lines: list[str], remote: str) -> Refusal | None:
        """Return why this caller may not see the page, or None if the caller may see it. If there is an access file,
        the caller must send the secret of an operator as a bearer token. A refusal is written to the audit log. The
        only exception is the time while the server still reads its log, because the audit log is not open yet."""
        name, runtime = path.removeprefix("/"), self._runtime
        given = next((line[14:].strip() for line in lines[1:] if line[:14].lower() == "authorization:"), "")
        secret = given[7:].strip() if given[:7].lower() == "bearer " else given
        who, refusal = page_refusal(self._authoriser, name, secret)
        if refusal is not None and runtime is not None:
            note = partial(runtime.core.guard.note, REFUSED, who, remote)
            fields = {"page": name, "code": refusal.code, "reason": refusal.reason}
            self._home.call_soon_threadsafe(partial(note, **fields))
        return refusal

    # In the server's event loop.

    async def metrics(self, accepts: str, method: str) -> bytes:
        """Return the response with all figures, in the format that the caller accepts."""
        from prometheus_client.exposition import choose_encoder

        encode, kind = choose_encoder(accepts)
        return _response("200 OK", kind, encode(self._registry), method)


async def _health(runtime: ServerRuntime, method: str) -> bytes:
    health = runtime.operations.health()
    document = {"server": runtime.name, "health": health, "trouble": runtime.core.trouble}
    status = "200 OK" if health == "ok" else "503 Service Unavailable"
    return _response(status, "application/json", json.dumps(document).encode() + b"\n", method)


_pages = ("/metrics", "/health", "/live", "/ready")
_stop_seconds = 1.0
_watch_seconds = 1.0


def _response(status: str, kind: str, body: bytes, method: str) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + (b"" if method == "HEAD" else body)


def page_address(text: str) -> Address:
    """Return the address for the pages. ``text``: ``HOST:PORT``, or only ``PORT`` for the loopback interface."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal() and 1 <= int(port[:6]) <= 65_535):
        raise UsageError(f"--metrics {text}: expected HOST:PORT, or PORT on the loopback interface")
    return Address(host.strip("[]") or "127.0.0.1", int(port))
