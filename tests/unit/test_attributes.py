"""An object with more than 30 attributes loses CPython's quick way to its methods: each call then takes twice as long.
Objects that work for every message stay below that, by slots if they must have more."""

import asyncio
from pathlib import Path
from typing import Any, Final

from antecede.live import ServerRuntime
from antecede.topology import parse_topology
from helpers.ports import free_ports
from helpers.summing import Sum

_most: Final = 30
_text: Final = """
[servers]
s1 = "tcp://127.0.0.1:{}"
s2 = "tcp://127.0.0.1:{}"
[domains]
A = {{ servers = ["s1", "s2"] }}
[agents]
sum = {{ server = "s1", class = "nowhere:Sum" }}
"""


def _parts(one: Any, found: dict[int, Any]) -> dict[int, Any]:
    """Return the objects of this package that an object consists of."""
    if not type(one).__module__.startswith("antecede.") or not hasattr(one, "__dict__") or id(one) in found:
        return found
    found[id(one)] = one
    for name in {*vars(one), *getattr(type(one), "__slots__", ())} - {"__dict__"}:
        _parts(getattr(one, name), found)
    return found


def test_objects_that_work_for_every_message_have_quick_methods(tmp_path: Path) -> None:
    async def main() -> dict[int, Any]:
        topology = parse_topology(_text.format(*free_ports(2)))
        runtime = ServerRuntime(topology, "s1", str(tmp_path / "s1"), agents={"sum": Sum})
        await runtime.start()
        try:
            consumer = runtime.machine.channel.consumers["A"]
            found = _parts(consumer.links["s2"], _parts(consumer, _parts(runtime, {})))
        finally:
            await runtime.stop(0.0)
        return found

    found = asyncio.run(main()).values()
    assert {"Driver", "LogStore", "ServerRuntime", "AgentServer", "Link", "Host"} <= {
        type(one).__name__ for one in found
    }
    many = {type(one).__name__: len(vars(one)) for one in found if len(vars(one)) > _most}
    assert not many, f"more than {_most} attributes: put some into slots: {many}"
