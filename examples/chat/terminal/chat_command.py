"""``antecede chat``: the chat of the tutorial. Play a short story on simulated servers, or join a live chat."""

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from antecede.cli.options import KEYS, Keys
from antecede.errors import UsageError

if TYPE_CHECKING:
    from chat_story import Story


sys.path.append(str(Path(__file__).parents[1]))


def register(app: typer.Typer) -> None:
    @app.command()
    def chat(
        topology: str | None = typer.Argument(
            None,
            metavar="TOPOLOGY",
            help="Topology file of running servers. Without this file, the story is played.",
        ),
        name: str | None = typer.Option(None, metavar="PERSON", help="Your name in the chat."),
        server: str | None = typer.Option(
            None, metavar="NAME", help="The server that you connect to. Default: the first server by name."
        ),
        room: str = typer.Option("kitchen", metavar="NAME", help="The room to join."),
        order: str = typer.Option(
            "fifo,pruned",
            metavar="LIST",
            help="Orders under which the story is played, separated by commas. `pruned` is a causal order.",
        ),
        trace: str | None = typer.Option(None, metavar="DIR", help="Write the traces of the story to DIR."),
        keys: Keys = KEYS,
        as_json: bool = typer.Option(False, "--json", help="Print the story as one JSON document."),
    ) -> int:
        """Show that an answer can appear before its question under FIFO order, but not under causal order. Or join a
        live chat.

        Without a topology, the command plays a short story on simulated servers: a question and its answer. With a
        topology, you join a room of a live chat: each line that you type goes to all members, until you press Ctrl-D.
        The command `antecede sample chat` copies such a topology, and `antecede up chat/chat.toml` runs its servers.
        """
        if topology is None:
            if name is not None or server is not None:
                raise UsageError("--name and --server are for a live chat: expected a topology file, such as chat.toml")
            return _tell(order, trace, as_json)
        if name is None:
            raise UsageError("expected --name NAME: your name in the chat")
        if trace is not None or as_json:
            raise UsageError(
                "--trace and --json are only for the story, which is played without a topology. To record a live chat, "
                "start its servers with: antecede up --trace"
            )
        from chat_client import Chat

        from antecede.cli.servers import Access, address_of, command_line

        access, address = Access(topology, "client", *keys), address_of(topology, server)

        async def main() -> int:
            async with command_line(address, access, name, 10.0) as bus:
                await Chat(bus, room, lambda text: print(text, flush=True)).run()
            return 0

        return asyncio.run(main())


def _tell(orders: str, folder: str | None, as_json: bool) -> int:
    from chat_story import tell

    from antecede.orders import parse

    stories = [tell(str(parse(order.strip()))) for order in orders.split(",")]
    written = [_write(story, folder) for story in stories] if folder is not None else []
    if as_json:
        print(json.dumps({"stories": [_report(story) for story in stories], "traces": written}, indent=2))
        return 0
    print("ann, bob, cy and dan are in the kitchen. ann's connection to cy breaks for half a second.\n")
    for story in stories:
        print("\n".join(_screens(story)))
        print()
    for path in written:
        print(f"antecede verify {path}")
    if not written:
        print("to write a trace for `antecede verify` and `antecede explain`: antecede chat --trace chat-trace")
    return 0


def _report(story: "Story") -> dict[str, Any]:
    from antecede.trace import judge

    late = judge(story.trace, ("causal",)).causal
    return {"order": story.order, "screens": story.screens, "reversed": story.reversed(), "late": len(late)}


def _screens(story: "Story") -> list[str]:
    lines = [f"under the order {story.order}"]
    seen: dict[tuple[str, ...], list[str]] = {}
    for name, screen in story.screens.items():
        seen.setdefault(tuple(screen), []).append(name)
    for texts, names in seen.items():
        lines.append(f"  on the screen{'s' if len(names) > 1 else ''} of {_listed(names)}:")
        lines += [f"    {line}" for line in texts]
    backwards = story.reversed()
    verdict = f"{_listed(backwards)} saw the answer before its question" if backwards else "everything in order"
    return [*lines, f"  → {verdict}"]


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _write(story: "Story", folder: str) -> str:
    from antecede.trace import write_trace

    path = Path(folder, f"{story.order.replace(':', '-')}.jsonl")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror}") from None
    write_trace(path, story.trace)
    return str(path)
