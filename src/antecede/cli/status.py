"""``antecede status``: show the state of the servers of a topology.

``antecede acknowledge``: confirm the torn writes that ``antecede status`` shows, so that they are not shown again.
"""

import json
import sys
from datetime import datetime
from time import sleep
from typing import Any

import typer

from antecede.cli.options import JSON, KEYS, WHERE, Keys
from antecede.cli.servers import Access, addresses, ask_server
from antecede.cli.wording import counted, letter_name, shown_values
from antecede.errors import ClosedError, RefusedError, UsageError


def register(app: typer.Typer) -> None:
    @app.command("status")
    def status(
        where: str = WHERE,
        keys: Keys = KEYS,
        watch: float | None = typer.Option(
            None, metavar="SECONDS", help="Repeat the report every SECONDS, until Ctrl-C."
        ),
        as_json: bool = JSON,
    ) -> int:
        """Show health, links, queue depths, and what each held message waits for.

        "it waits for s2: message 7, the last one delivered is 5" means: a held message depends on message 7 from s2,
        but the last message from s2 that was delivered here is message 5. At least one of the messages 6 and 7 is still
        in transit, or is also held.

        With --json and --watch, the command prints one JSON document per line.

        Exit codes:
        0: All of the conditions below hold.
        1: At least one of the conditions below does not hold.

        These are the conditions:
        health: Every server is ok.
        links: No server refuses the connection of another server.
        access: All servers use the same access file, and could read it. If there are no access files, all servers
        require a token, or no server requires one.
        """
        if watch is not None and not 0.1 <= watch <= 86_400:
            raise UsageError(f"--watch {watch}: expected 0.1 to 86400 seconds")
        access = Access(where, "operator", *keys)
        while True:
            servers: dict[str, Any] = {}
            for name, address in addresses(where).items():
                try:
                    document = ask_server(address, access, "status")
                    servers[document["server"]] = document
                except (ClosedError, RefusedError) as error:
                    servers[name] = {"server": name, "health": "no answer", "trouble": str(error)}
            well = all(one["health"] == "ok" and not one.get("refused") for one in servers.values())
            differs = _access_differs(servers)
            well = well and not differs and not any((one.get("access") or {}).get("error") for one in servers.values())
            if as_json:
                report = {"well": well, "access_differs": differs, "servers": servers}
                print(json.dumps(report, indent=2 if watch is None else None), flush=True)
            else:
                if watch is not None:
                    print(f"--- {datetime.now():%H:%M:%S}")
                for one in servers.values():
                    _report(shown_values(one))
                if differs:
                    print(
                        "servers check identities in different ways: give all of them the same access file (or, "
                        "without access files, the same --token-file), then SIGHUP"
                    )
            if watch is None:
                return 0 if well else 1
            sys.stdout.flush()
            sleep(watch)

    @app.command("acknowledge")
    def acknowledge(
        where: str = WHERE,
        keys: Keys = KEYS,
        as_json: bool = JSON,
    ) -> int:
        """Acknowledge the torn writes that servers removed from their logs. Then `antecede status` no longer shows
        these writes.

        A torn write is a write that a power cut interrupted. The server removes a torn write at its next start. If the
        server ran with `antecede serve --durability disk` (the default), a torn write contains no accepted message,
        because the server accepts a message only when its write is complete. But a write can also look torn because the
        disk has lost data of a complete write. So check the disk first.

        Exit codes:
        0: All servers have answered.
        2: A server did not answer. The other servers have acknowledged their torn writes.
        """
        access = Access(where, "operator", *keys)
        found: list[dict[str, Any]] = []
        silent = 0
        for name, address in addresses(where).items():
            try:
                found.append(ask_server(address, access, "acknowledge"))
            except (ClosedError, RefusedError) as error:
                silent += 1
                print(f"antecede: {name}: {error}", file=sys.stderr)
        if as_json:
            print(json.dumps(found, indent=2))
        else:
            for one in found:
                count = len(one["acknowledged"])
                print(f"{one['server']}: {count} removed torn write{'' if count == 1 else 's'} acknowledged")
        return 2 if silent else 0


def _message(held: dict[str, Any]) -> str:
    letters = held["letters"]
    if not letters.get("first"):
        return str(held["message"])
    first = letters["first"]
    more = f" and {letters['count'] - 1} more" if letters["count"] > 1 else ""
    return f"{letter_name(first)} to {', '.join(first['to'])}{more}"


def _reasons(waiting: dict[str, Any]) -> str:
    """Return the text that follows "waits for" in the report. The text names each server from which the ordering
    protocol still needs something, such as a message. If there is no such server, the text lists the frames that have
    not arrived yet."""
    servers = "; ".join(f"{one['server']}: {one['what']}" for one in waiting["waits_for"])
    if servers:
        return servers
    frames = waiting.get("missing", {}).items()
    missing = "; ".join(f"{peer}: frames {numbers}" for peer, numbers in frames if numbers)
    return missing or "frames in transit"


def _report(one: dict[str, Any]) -> None:
    problem = one["trouble"].removeprefix("no answer from ")
    print(f"{one['server']}: {one['health']}" + (f" ({problem})" if problem else ""))
    if one["health"] == "no answer":
        return
    clients = ", ".join(one["clients"]["here"]) or "none"
    dropped = f" (the oldest {one['dead_dropped']} were dropped)" if one.get("dead_dropped") else ""
    print(f"  letters waiting {one['waiting_letters']}, reactions {one['reactions']}, dead {one['dead']}{dropped}")
    if one.get("held_letters"):
        print(f"  letters held until an operator decides about a dead letter: {one['held_letters']}")
    print(f"  records {one['log']['last']}, durable {one['log']['durable']}; clients here: {clients}")
    for cut in one.get("truncations", ()):
        when = f"{datetime.fromtimestamp(cut['wall_ms'] / 1000):%Y-%m-%d %H:%M:%S}"
        what = f"{cut['bytes']} bytes after byte {cut['offset']} of {cut['file']} ({cut['reason']})"
        cut_off = f"a torn write was removed from the log at the start of {when}: {what}"
        print(f"  {cut_off}: check the disk, then antecede acknowledge")
    if abs(one.get("clock_ahead_seconds", 0)) >= 1:
        print(f"  the wall clock was set: it is {one['clock_ahead_seconds']:+.0f} s from server time")
    _report_change(one.get("topology"))
    _report_access(one.get("access"))
    if trace := one.get("trace"):
        problem = f" (trouble: {trace['trouble']})" if trace["trouble"] else ""
        print(f"  trace converted up to {trace['converted']}, segments behind {trace['segments_behind']}{problem}")
    for agent, depth in one["mailboxes"].items():
        away = ", a disconnected client" if agent in one["clients"]["away"] else ""
        full = ", above its quota" if agent in one.get("crowded", ()) else ""
        print(f"  mailbox of {agent}: {depth}{away}{full}")
    for name, domain in one["domains"].items():
        for peer, link in domain["links"].items():
            state = "connected" if link["connected"] else "not connected"
            print(
                f"  {name} ({domain['order']}) with {peer}: {state}, "
                f"unacknowledged {link['unacknowledged']}, held {link['held']}"
            )
        for held in domain["held"]:
            print(f"  {name} holds message {_message(held)} from {held['from']}: it waits for {_reasons(held)}")
        if domain["unposted"]["copies"]:
            unposted = domain["unposted"]
            print(f"  {name}: {unposted['copies']} copies are not sent yet; they wait for {_reasons(unposted)}")
    for stopped in one["stopped"]:
        print(f"  stopped: {stopped['domain']} with {stopped['peer']}: {stopped['reason']}")
    for peer, failed in one.get("unreachable", {}).items():
        print(f"  unreachable: {peer}: {failed['reason']} ({failed['tries']} tries in {failed['seconds']:.0f} s)")
    for peer, reason in one["refused"].items():
        print(f"  refused: {peer}: {reason}")


def _report_change(topology: dict[str, Any] | None) -> None:
    """Print the number of the change that made the current topology. If a new change is in progress, print its number
    and its state."""
    if topology is None:
        return
    if topology["change"]:
        print(f"  topology: change {topology['change']} of system {topology['system']}")
    if progress := topology["in_progress"]:
        waiting = f", {progress['waiting']} letters wait" if progress["waiting"] else ""
        print(
            f"  change {progress['change']} is in progress ({progress['state']}{waiting}): antecede topology apply "
            "finishes it, antecede topology abort ends it"
        )


def _report_access(access: dict[str, Any] | None) -> None:
    """Print the digest of the access file in use, the error if this file could not be reloaded, and the keys that have
    expired or expire soon."""
    if access is None or access["mode"] != "access-file":
        return
    print(f"  access file {access['digest']}, {access['identities']} identities")
    if access["error"]:
        print(f"  access file not reloaded: {access['error']}")
    for key in access["expires"]:
        if key["days"] <= _soon_days:
            when = "has expired" if key.get("expired", key["days"] <= 0) else f"expires in {_days(key['days'])}"
            replaced = key.get("replaced")
            which, advice = ("old key", "revoke --old") if replaced else ("key", "rotate")
            print(f"  {which} of {key['role']} {key['name']} {when}: antecede credentials {advice}")


def _days(days: float) -> str:
    return counted(round(days), "day") if days >= 1 else "less than a day"


def _access_differs(servers: dict[str, Any]) -> bool:
    """Return whether servers check identities in different ways. For example, they use different access files, or only
    some servers use an access file, or only some servers require a token."""
    used = [one["access"] for one in servers.values() if one.get("access")]
    return len({(one["mode"], one["digest"]) for one in used}) > 1


_soon_days = 30
