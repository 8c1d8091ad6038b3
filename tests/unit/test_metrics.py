"""The metrics page: what Prometheus' own parser reads off it, and the health that a balancer asks for."""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any

import pytest

from antecede import limits
from antecede.durations import BOUNDS, Durations
from antecede.errors import TopologyError, UsageError
from antecede.live import ServerRuntime
from antecede.live.metrics import HEALTHS, MetricsPage, page_address
from antecede.live.process import serve
from antecede.server import Buried, ServerCore, recover
from antecede.topology import Address, parse_topology
from helpers.ports import free_ports
from helpers.summing import Add, Sum, Tell, Total

pytest.importorskip("prometheus_client")


Play = Callable[[ServerRuntime, ServerRuntime, MetricsPage, Address], Awaitable[None]]


def _page_of(server: ServerRuntime) -> MetricsPage:
    page = MetricsPage(server.core.guard.authoriser)
    page.show(server)
    return page


def _played(folder: Path, play: Play) -> None:
    """Two servers, the second with an agent and a page."""

    async def main() -> None:
        first, second, page_port = free_ports(3)
        file = parse_topology(
            f'[servers]\ns1 = "tcp://127.0.0.1:{first}"\ns2 = "tcp://127.0.0.1:{second}"\n'
            '[domains]\nA = { servers = ["s1", "s2"] }\n[agents]\nsum = { server = "s2", class = "nowhere:Sum" }\n'
        )
        near = ServerRuntime(file, "s1", str(folder / "s1"), agents={})
        far = ServerRuntime(file, "s2", str(folder / "s2"), agents={"sum": Sum})
        page, address = _page_of(far), Address("127.0.0.1", page_port)
        await page.start(address)
        await near.start()
        await far.start()
        try:
            async with asyncio.timeout(20):
                await play(near, far, page, address)
        finally:
            await near.stop()
            await far.stop()
            await page.stop()

    asyncio.run(main())


async def _get(address: Address, path: str, method: str = "GET", accept: str = "") -> tuple[int, str, str]:
    """Status, content type and body."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    extra = f"Accept: {accept}\r\n" if accept else ""
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\n{extra}\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    lines = head.split("\r\n")
    kind = next(line for line in lines if line.startswith("Content-Type")).partition(": ")[2]
    return int(lines[0].split()[1]), kind, body


def _samples(text: str) -> dict[tuple[str, tuple[str, ...]], float]:
    from prometheus_client.parser import text_string_to_metric_families

    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_what_the_parser_reads(tmp_path: Path) -> None:
    async def play(near: ServerRuntime, far: ServerRuntime, page: MetricsPage, address: Address) -> None:
        async with near.bus("alice") as bus:
            for amount in range(10):
                await bus.send("sum", Add(amount=amount))
            await bus.post("sum", "Nonsense", {})
            await bus.ask("sum", Tell(), expect=Total)
        status, kind, body = await _get(address, "/metrics")
        assert status == 200
        assert kind.startswith("text/plain")
        found = _samples(body)
        assert found["antecede_letters_delivered_total", ("A",)] == 12
        assert 1 <= found["antecede_messages_delivered_total", ("A",)] <= 12
        assert found["antecede_letters_sent_total", ("A",)] == 1
        assert found["antecede_stamp_bytes_total", ("A",)] > 0
        assert found["antecede_held_messages", ("A",)] == 0
        assert found["antecede_reactions_total", ()] == 12
        assert found["antecede_letters_died_total", ()] == found["antecede_dead_letters_kept", ()] == 1
        assert found["antecede_reaction_seconds_count", ()] == 12
        assert found["antecede_reaction_seconds_sum", ()] > 0
        assert found["antecede_reaction_seconds_bucket", ("+Inf",)] == 12
        commits = found["antecede_commit_seconds_count", ()]
        assert commits == found["antecede_fdatasync_seconds_count", ()] > 0, "every group of the log is synced"
        assert found["antecede_log_records_total", ()] == far.store.last
        assert found["antecede_log_bytes", ()] == far.store.log_bytes
        assert found["antecede_snapshot_records_behind", ()] == far.store.last
        assert found["antecede_peer_connected", ("s1",)] == 1
        assert found["antecede_peer_reconnections_total", ("s1",)] == 0
        assert found["antecede_connections", ("peers",)] == 1
        assert found["antecede_health", ("ok",)] == 1
        assert [found["antecede_health", (state,)] for state in HEALTHS[1:]] == [0] * 5
        assert found["process_resident_memory_bytes", ()] > 0

        await asyncio.to_thread(far.store.snapshot, far.machine.snapshot(), far.store.last)
        near.core.peering.peers["s2"].connection.close("once more")  # type: ignore[union-attr]
        while near.core.peering.peers["s2"].connections < 2 or far.core.peering.peers["s1"].connections < 2:
            await asyncio.sleep(0.01)
        found = _samples((await _get(address, "/metrics"))[2])
        assert found["antecede_peer_reconnections_total", ("s1",)] == 1
        assert found["antecede_snapshot_records_behind", ()] == 0
        far.machine.organisation.outside = True
        found = _samples((await _get(address, "/metrics"))[2])
        assert found["antecede_health", ("not yet part",)] == 1

    _played(tmp_path, play)


def test_open_metrics_where_it_is_asked_for(tmp_path: Path) -> None:
    async def play(near: ServerRuntime, far: ServerRuntime, page: MetricsPage, address: Address) -> None:
        from prometheus_client.openmetrics.parser import text_string_to_metric_families

        _, kind, body = await _get(address, "/metrics", accept="application/openmetrics-text; version=1.0.0")
        assert kind.startswith("application/openmetrics-text")
        assert "antecede_reactions" in {family.name for family in text_string_to_metric_families(body)}

    _played(tmp_path, play)


def test_health(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(near: ServerRuntime, far: ServerRuntime, page: MetricsPage, address: Address) -> None:
        assert (await _get(address, "/health"))[0] == 200
        monkeypatch.setattr(ServerCore, "trouble", "no room")
        status, _, body = await _get(address, "/health")
        assert status == 503
        assert '"health": "in trouble"' in body
        assert "no room" in body
        monkeypatch.undo()
        far.operations.stopping = True
        assert (await _get(address, "/health"))[0] == 503
        far.operations.stopping = False

    _played(tmp_path, play)


def test_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(near: ServerRuntime, far: ServerRuntime, page: MetricsPage, address: Address) -> None:
        assert await _get(address, "/live") == (200, "text/plain", "ok\n")
        pulse = far.pulse
        pulse.end()
        # At the bound it is live, beyond it it is not.
        monkeypatch.setattr("antecede.live.server.monotonic", lambda: pulse._turned + limits.live_seconds_max)
        assert (await _get(address, "/live"))[0] == 200
        monkeypatch.setattr("antecede.live.server.monotonic", lambda: pulse._turned + limits.live_seconds_max + 1)
        assert await _get(address, "/live") == (503, "text/plain", "the event loop has been blocked for 31 s\n")
        monkeypatch.undo()
        pulse.begin()
        assert (await _get(address, "/live"))[0] == 200, "it goes on"

        # The event loop turns, and no step is taken: somebody believes that one is scheduled.
        monkeypatch.setattr(limits, "live_seconds_max", 0.2)
        far.driver.awake = True
        far.submit(Buried("nothing"))
        while (found := await _get(address, "/live"))[0] == 200:
            await asyncio.sleep(0.05)
        assert found[2].endswith(" inputs wait\n")
        far._loop.call_soon(far.tick)
        while (await _get(address, "/live"))[0] != 200:
            await asyncio.sleep(0.05)

    _played(tmp_path, play)


def test_live_when_background_work_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, failing, watch = [0], [True], ServerCore.watch

    def failing_watch(core: ServerCore, now: float) -> None:
        calls[0] += 1
        if failing[0]:
            raise RuntimeError("no watch")
        watch(core, now)

    async def play(near: ServerRuntime, far: ServerRuntime, page: MetricsPage, address: Address) -> None:
        while calls[0] < 4:
            await asyncio.sleep(0.05)
        assert (await _get(address, "/live"))[0] == 200, "one failure is not a trouble yet"
        while (found := await _get(address, "/live"))[0] == 200:
            await asyncio.sleep(0.05)
        assert "no watch" in found[2]
        assert "no watch" in far.operations.status()["trouble"]
        failing[0] = False
        monkeypatch.setattr(limits, "background_failure_seconds", 0.5)
        while (await _get(address, "/live"))[0] != 200:
            await asyncio.sleep(0.05)

    monkeypatch.setattr(ServerCore, "watch", failing_watch)
    _played(tmp_path, play)


def test_ready_from_the_start_until_the_stop(tmp_path: Path) -> None:
    async def main() -> None:
        port, page_port = free_ports(2)
        file = parse_topology(f'[servers]\ns1 = "tcp://127.0.0.1:{port}"\n[domains]\nA = {{ servers = ["s1"] }}\n')
        server = ServerRuntime(file, "s1", str(tmp_path / "s1"), agents={})
        page, address = _page_of(server), Address("127.0.0.1", page_port)
        await page.start(address)
        assert await _get(address, "/ready") == (503, "text/plain", "the server is starting\n")
        await server.start()
        assert await _get(address, "/ready") == (200, "text/plain", "ok\n")
        server.machine.overloaded = True
        assert (await _get(address, "/ready"))[0] == 200, "an overloaded server has started"
        await server.stop()
        assert await _get(address, "/ready") == (503, "text/plain", "the server stops\n")
        await page.stop()

    asyncio.run(main())


def test_pages_while_the_log_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe must not kill a server that reads a long log: it is live, and not ready."""
    port, page_port = free_ports(2)
    address = Address("127.0.0.1", page_port)
    file = parse_topology(f'[servers]\ns1 = "tcp://127.0.0.1:{port}"\n[domains]\nA = {{ servers = ["s1"] }}\n')
    answers: dict[str, list[tuple[int, str]]] = {}

    def ask(phase: str) -> None:
        paths = ("/live", "/ready", "/health", "/metrics", "/else")
        got = [asyncio.run(_get(address, path)) for path in paths]
        answers[phase] = [
            (status, body if status != 200 or path == "/live" else "")
            for path, (status, _, body) in zip(paths, got, strict=True)
        ]

    def recover_slowly(*given: Any, **options: Any) -> Any:
        # The event loop is blocked here, as it is while a real log is read.
        asking = Thread(target=ask, args=("reading",))
        asking.start()
        asking.join()
        return recover(*given, **options)

    def ask_then_stop() -> None:
        while not answers or asyncio.run(_get(address, "/ready"))[0] != 200:
            sleep(0.01)
        ask("started")
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("antecede.live.server.recover", recover_slowly)
    monkeypatch.setattr("antecede.live.process.settle_memory", lambda: None)
    Thread(target=ask_then_stop, daemon=True).start()
    assert asyncio.run(serve(file, "s1", str(tmp_path / "s1"), metrics=address, agents={})) == 0
    reads, other = "the server is reading its log\n", (404, "/metrics, /health, /live or /ready\n")
    assert answers["reading"] == [(200, reads), (503, reads), (503, reads), (503, reads), other]
    assert answers["started"] == [(200, "ok\n"), (200, ""), (200, ""), (200, ""), other]


def test_what_is_no_request_for_it(tmp_path: Path) -> None:
    async def play(near: ServerRuntime, far: ServerRuntime, page: MetricsPage, address: Address) -> None:
        assert (await _get(address, "/etc/passwd"))[0] == 404
        assert (await _get(address, "/metrics", method="POST"))[0] == 405
        assert (await _get(address, "/metrics", method="HEAD"))[2] == ""
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(b"GET /" + b"x" * (limits.metrics_request_bytes_max + 1))
        assert await reader.read() == b"", "too long a request is hung up on"
        writer.close()
        strangers = [
            await asyncio.open_connection(address.host, address.port) for _ in range(limits.metrics_connections_max)
        ]
        reader, writer = await asyncio.open_connection(address.host, address.port)
        assert await reader.read() == b"", "one too many is hung up on"
        for _, other in [*strangers, (reader, writer)]:
            other.close()
        while page._open:
            await asyncio.sleep(0.01)
        assert (await _get(address, "/health"))[0] == 200

    _played(tmp_path, play)


def test_a_busy_port(tmp_path: Path) -> None:
    async def play(near: ServerRuntime, far: ServerRuntime, page: MetricsPage, address: Address) -> None:
        with pytest.raises(UsageError, match="cannot serve metrics on"):
            await _page_of(near).start(address)

    _played(tmp_path, play)


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(near: ServerRuntime, far: ServerRuntime, page: MetricsPage, address: Address) -> None:
        monkeypatch.setitem(sys.modules, "prometheus_client", None)
        with pytest.raises(UsageError, match=r"install antecede\[metrics\]"):
            _page_of(near)

    _played(tmp_path, play)


def test_addresses_of_pages() -> None:
    assert page_address("9100") == page_address(":9100") == Address("127.0.0.1", 9100)
    assert page_address("[::1]:1") == Address("::1", 1)
    assert page_address("0.0.0.0:65535") == Address("0.0.0.0", 65535)
    for text in ("", "x", "host:", "1:0", "1:65536", "1:９"):
        with pytest.raises(UsageError, match="expected HOST:PORT"):
            page_address(text)


def test_buckets() -> None:
    durations = Durations()
    for seconds in (0.0, BOUNDS[0], BOUNDS[0] * 1.1, 99.0):
        durations.add(seconds)
    ends = dict(durations.cumulative())
    assert ends[BOUNDS[0]] == 2, "a bound belongs to its own bucket"
    assert ends[BOUNDS[1]] == 3
    assert ends[BOUNDS[-1]] == 3
    assert ends[float("inf")] == durations.count == 4


def test_pages_in_the_topology_file() -> None:
    text = '[servers]\ns1 = "tcp://127.0.0.1:1"\n[domains]\nA = { servers = ["s1"] }\n'
    file = parse_topology(text + '[metrics]\ns1 = "[::1]:9101"\n')
    assert file.metrics == {"s1": Address("::1", 9101)}
    assert parse_topology(file.text()) == file
    assert parse_topology(text).epoch == file.epoch, "where a page is served concerns nobody else"
    for bad in ('s2 = "h:1"', 's1 = "h"', 's1 = "h:0"', "s1 = 9101"):
        with pytest.raises(TopologyError, match="topology:6: metrics of"):
            parse_topology(f"{text}[metrics]\n{bad}\n")


def test_a_run_is_what_its_parts_are() -> None:
    for gaps in ([], [0.00001, 0.00002], [0.00001, 0.3, BOUNDS[0]]):
        together, apart, marks = Durations(), Durations(), [5.0]
        for gap in gaps:
            marks.append(marks[-1] + gap)
            apart.add(marks[-1] - marks[-2])
        together.add_run(marks)
        assert list(together.cumulative()) == list(apart.cumulative())
        assert together.seconds == pytest.approx(apart.seconds)
