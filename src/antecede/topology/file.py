"""The topology file: servers with their addresses, domains with their orders, agents with their servers (TOML).

::

    guarantee = "fifo"                       # only to allow orders that are not causal (default "causal")
    [servers]
    s1 = "tcp://127.0.0.1:7101"
    [domains]
    A = { servers = ["s1", "s2"], order = "pruned" }
    [application]
    module = "shop.agents"
    [agents]
    orders = { server = "s1", class = "shop.agents:Orders" }
    [metrics]
    s1 = "127.0.0.1:9101"
    [mailboxes]
    clients = { letters = 10000 }
    [moved]
    s9 = "s1"                                # s9 was removed, and its clients are on s1 now

Nothing in the file is guessed: an unknown key, an undeclared server or a repeated address is an error. The message
names the file and, if known, the line.

**Canonical form.** The sequence of the entries does not matter, because all names are sorted in natural order (``s2``
before ``s10``). The servers of a domain are sorted, too. A server's position in this sorted list is its member number
in the order's stamps. So the layout of a file has no effect. Two servers have the same **epoch** (a hash of the
canonical form) if their files differ only in layout. Any other difference gives another epoch. Exceptions are the
addresses of metrics pages and the settings of mailboxes and reactions (:class:`Mailboxes`,
:class:`ReactionSettings`). They are not part of the epoch, so they may change, and may differ between servers.
"""

import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, Final

import msgspec

from antecede import limits
from antecede.errors import TopologyError
from antecede.topology.graph import Domain, Topology


def line_of(text: str, path: tuple[str, ...]) -> int | None:
    """Return the line number of a key in a TOML text. ``path``: the names of the tables around the key, then the key.

    If no line begins with the key, return the line of the innermost table in ``path`` that has its own line. If no
    table has its own line either, return None. The text is searched line by line, not parsed.

    The line numbers of keys in a TOML file, for error messages. The TOML parser does not report them.
    """
    header: tuple[str, ...] = ()
    best: tuple[int, int | None] = (0, None)
    for number, line in enumerate(text.splitlines(), 1):
        if found := re.match(r"\s*\[+([^\]]+)\]", line):
            given = header = _keys(found[1])
        elif found := re.match(r"""\s*((?:[\w.\s-]|"[^"]*"|'[^']*')+?)\s*=""", line):
            given = header + _keys(found[1])
        else:
            continue
        if given == path[: len(given)] and len(given) > best[0]:
            best = (len(given), number)
    return best[1]


def _keys(dotted: str) -> tuple[str, ...]:
    parts = re.findall(r"""\s*(?:"([^"]*)"|'([^']*)'|([^.\s"']+))\s*(?:\.|$)""", dotted)
    return tuple("".join(part) for part in parts)


FULL: Final = ("expire", "refuse")
DEAD_FOLLOW: Final = ("deliver", "hold")


class Quota(msgspec.Struct, frozen=True):
    """The limits of one mailbox, and the action when it is full. A limit of 0 means that there is no limit."""

    letters: int = 0
    bytes: int = 0
    """The limit for the total size of all notifications in the mailbox, in bytes. Other parts of the letters, such as
    addresses and ids, are not included."""
    seconds: float = 0
    """The longest time that a letter may wait."""
    full: str = "expire"

    @property
    def limited(self) -> bool:
        """Return whether there is any limit."""
        return bool(self.letters or self.bytes or self.seconds)


class Mailboxes(msgspec.Struct, frozen=True, dict=True):
    """The settings of mailboxes in a topology file: quotas, and the treatment of letters that depend on a dead letter.

    ::

        [mailboxes]
        clients = { letters = 10000, bytes = 50000000, seconds = 86400 }     # of each client; 0: no limit
        agents = { letters = 100000 }                                        # of each agent (default: no limit)
        orders = { letters = 1000, full = "refuse" }                         # of one agent, or of one client
        name@server

    If a mailbox exceeds its quota, its oldest letters **expire**: they become dead letters, and the reason is recorded.
    With ``full = "refuse"``, a full mailbox refuses letters from clients of its own server. Letters from agents and
    from other servers cannot be refused; they make the oldest letters expire. These settings take effect at the server
    of the mailbox. They are not part of the epoch (a hash of the topology), so they may change whenever the server
    restarts.
    """

    clients: Quota = Quota(limits.mailbox_letters_max, limits.mailbox_bytes_max)
    """The quota of each client that is not in ``named``."""
    agents: Quota = Quota()
    """The quota of each agent that is not in ``named``."""
    named: dict[str, Quota] = {}
    """The agents and clients with a separate quota, each with this quota."""
    hold: frozenset[str] = frozenset()
    """The agents with the setting ``dead_follow = "hold"``. If a letter to such an agent becomes a dead letter, the
    server holds all letters to this agent that may depend on the dead letter. The server releases them when an operator
    has decided about the dead letter. If the dead letter has *expired*, no letters are held."""

    def quota(self, address: str, agent: bool) -> Quota:
        """Return the quota of a mailbox. ``agent``: whether the mailbox belongs to an agent, not to a client."""
        return self.named.get(address) or (self.agents if agent else self.clients)

    @cached_property
    def refusing(self) -> bool:
        """Return whether any quota has the setting ``full = "refuse"``."""
        return any(quota.full == "refuse" for quota in (self.clients, self.agents, *self.named.values()))

    def lines(self) -> list[str]:
        """Return the lines of a table ``[mailboxes]``, without its header; empty if all quotas have their defaults."""
        plain = Mailboxes()
        some = {"clients": self.clients} if self.clients != plain.clients else {}
        if self.agents != plain.agents:
            some["agents"] = self.agents
        return [f'"{name}" = {_entry(quota)}' for name, quota in (some | self.named).items()]


def _entry(quota: Quota) -> str:
    full = f', full = "{quota.full}"' if quota.full != "expire" else ""
    return f"{{ letters = {quota.letters}, bytes = {quota.bytes}, seconds = {quota.seconds}{full} }}"


ISOLATE: Final = ("none", "process")
KEYS: Final = ("isolate", "reaction_seconds_max")


class ReactionSettings(msgspec.Struct, frozen=True):
    """The part of a topology file about reactions: how long they may take, and which agents have a separate process.

    ::

        [application]
        reaction_seconds_max = 60                                            # of every agent (default 300)
        [agents]
        resize = { server = "s1", class = "shop:Resize", isolate = "process", reaction_seconds_max = 5 }

    A *reaction* is the handling of one letter by an agent. Its time limit is ``reaction_seconds_max``. If a handler
    that is not ``async`` exceeds the limit, its server's process ends, because nothing else can stop the handler. If an
    ``async`` handler exceeds the limit, it is cancelled. The handlers of an agent with ``isolate = "process"`` run in a
    worker process. If such a handler exceeds the limit, the worker process is killed, but the server and all other
    agents continue. In all three cases, the server counts one failed attempt to process the letter. These settings are
    not part of the epoch (a hash of the topology), so they may change whenever the server restarts.
    """

    seconds: float = limits.reaction_seconds_max
    """The limit of each agent that is not in ``named``."""
    named: dict[str, float] = {}
    """The agents with a separate limit, each with this limit in seconds."""
    isolated: frozenset[str] = frozenset()
    """Agents whose handlers run in a worker process."""

    def limit(self, agent: str) -> float:
        """Return how long one reaction of this agent may take."""
        return self.named.get(agent, self.seconds)

    @property
    def longest(self) -> float:
        """The largest of all limits."""
        return max(self.seconds, *self.named.values(), 0.0)

    def keys(self, agent: str) -> str:
        """Return an agent's own settings as text for its entry in a topology file, or an empty text if there are none.
        An example: ``, isolate = "process", reaction_seconds_max = 5``."""
        seconds = f", reaction_seconds_max = {self.named[agent]:g}" if agent in self.named else ""
        return (', isolate = "process"' if agent in self.isolated else "") + seconds


def read_reactions(document: dict[str, Any], error: Callable[..., Exception]) -> ReactionSettings:
    """Read the settings from a topology document. The types of its tables must have been checked before. The function
    ``error(reason, *path)`` returns the error to raise; ``path`` is the place in the document."""

    def seconds_in(entry: dict[str, Any], what: str, *path: str) -> float | None:
        value = entry.get("reaction_seconds_max")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (number and 0 < value <= limits.reaction_seconds_limit):
            expected = f"expected seconds, more than 0 and at most {limits.reaction_seconds_limit:g}"
            raise error(f"{what}reaction_seconds_max = {value!r}: {expected}", *path)
        return None if value is None else float(value)

    named: dict[str, float] = {}
    isolated: set[str] = set()
    for name, entry in document.get("agents", {}).items():
        isolate = entry.get("isolate", ISOLATE[0])
        given = [key for key in KEYS if key in entry]
        if given and "servers" in entry:
            raise error(f"object {name}: {given[0]} is only for agents; remove it", "agents", name)
        if isolate not in ISOLATE:
            raise error(f"agent {name}: isolate = {isolate!r}: expected {' or '.join(ISOLATE)}", "agents", name)
        if isolate == "process":
            isolated.add(name)
        seconds = seconds_in(entry, f"agent {name}: ", "agents", name)
        if seconds is not None:
            named[name] = seconds
    application = seconds_in(document.get("application", {}), "", "application", "reaction_seconds_max")
    return ReactionSettings(application or limits.reaction_seconds_max, named, frozenset(isolated))


GUARANTEES = ("causal", "fifo", "none")
"""The guarantees that a file may declare, strongest first."""

DEFAULT_ORDER = "pruned"

_tables = ("servers", "domains", "application", "agents", "metrics", "mailboxes", "moved", "guarantee")
_name = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9_.-]{1,64}")
_address = re.compile(r"tcp://(?P<host>[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")
_module = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_class = re.compile(rf"{_module.pattern}:{_module.pattern}", re.ASCII)
_order = re.compile(r"[A-Za-z0-9_.-]+(:[^\s]*)?")


class Address(msgspec.Struct, frozen=True):
    """The address on which a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp://[{self.host}]:{self.port}" if ":" in self.host else f"tcp://{self.host}:{self.port}"


class DomainEntry(Domain, frozen=True):
    """A domain of the file. A server's position in ``servers`` is its member number in the domain."""

    order: str = DEFAULT_ORDER
    """An order's name with its options, as text, for example ``buffer:pipelined=true``."""


class AgentHome(msgspec.Struct, frozen=True):
    """An agent in the file, and its server."""

    name: str
    server: str
    kind: str
    """The agent's class, as ``module:Class``."""


class ObjectHome(msgspec.Struct, frozen=True):
    """A replicated object, and the servers that hold a replica."""

    name: str
    servers: tuple[str, ...]
    kind: str
    """The object's class, as ``module:Class``."""


class TopologyFile(msgspec.Struct, frozen=True, dict=True):
    """The content of a topology file, with all names sorted as in the canonical form."""

    servers: dict[str, Address]
    domains: tuple[DomainEntry, ...]
    agents: tuple[AgentHome, ...] = ()
    module: str | None = None
    """The application's module."""
    guarantee: str = "causal"
    """The weakest guarantee that is allowed for messages on any route of the topology, end to end."""
    metrics: dict[str, Address] = {}
    """The default addresses of the servers' metrics pages; not part of the epoch."""
    name: str = "topology"
    """The file's name, for errors; not part of its content."""
    objects: tuple[ObjectHome, ...] = ()
    """Replicated objects."""
    mailboxes: Mailboxes = Mailboxes()
    """The settings of mailboxes; not part of the epoch."""
    reactions: ReactionSettings = ReactionSettings()
    """The limits of reactions, and the agents whose handlers run in a worker process. These settings are not part of
    the epoch."""
    moved: dict[str, str] = {}
    """The key is a removed server. The value is the server that has the removed server's clients now. The clients keep
    their addresses."""

    @cached_property
    def organisation(self) -> Topology:
        """The graph of servers and domains, in which routes are found."""
        return Topology(self.domains, self.servers)

    def domain(self, name: str) -> DomainEntry:
        """Return the domain with this name, which must exist."""
        return next(domain for domain in self.domains if domain.name == name)

    def home_of(self, server: str) -> str:
        """Return the server that has the clients with the addresses ``NAME@server``. If ``server`` was removed, this is
        another server."""
        return self.moved.get(server, server)

    def canonical(self) -> str:
        """Return the content of the file in canonical form, independent of its layout."""
        content: dict[str, Any] = {
            "agents": {agent.name: [agent.server, agent.kind] for agent in self.agents},
            "application": self.module,
            "domains": {domain.name: [list(domain.servers), domain.order] for domain in self.domains},
            "guarantee": self.guarantee,
            "servers": {server: str(address) for server, address in self.servers.items()},
        }
        if self.objects:
            content["objects"] = {one.name: [list(one.servers), one.kind] for one in self.objects}
        if self.moved:
            content["moved"] = self.moved
        return json.dumps(content, sort_keys=True, separators=(",", ":"))

    @cached_property
    def epoch(self) -> str:
        """A hash of the canonical form, as sixteen hexadecimal digits."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()[:16]

    def text(self) -> str:
        """Return the content as TOML, which people can read and :func:`parse_topology` can parse."""
        lines = [] if self.guarantee == "causal" else [f'guarantee = "{self.guarantee}"', ""]
        lines += ["[servers]", *(f'{_key(server)} = "{address}"' for server, address in self.servers.items())]
        lines += ["", "[domains]"]
        for domain in self.domains:
            members, order = json.dumps(domain.servers), json.dumps(domain.order)
            lines.append(f"{_key(domain.name)} = {{ servers = {members}, order = {order} }}")
        seconds, plain = self.reactions.seconds, limits.reaction_seconds_max
        if self.module is not None or seconds != plain:
            lines += ["", "[application]"]
            lines += [] if self.module is None else [f'module = "{self.module}"']
            lines += [] if seconds == plain else [f"reaction_seconds_max = {seconds:g}"]
        if self.agents or self.objects:
            lines += ["", "[agents]"]
        for agent in self.agents:
            hold = ', dead_follow = "hold"' if agent.name in self.mailboxes.hold else ""
            hold += self.reactions.keys(agent.name)
            lines.append(f'{_key(agent.name)} = {{ server = "{agent.server}", class = "{agent.kind}"{hold} }}')
        for one in self.objects:
            lines.append(f'{_key(one.name)} = {{ servers = {json.dumps(one.servers)}, class = "{one.kind}" }}')
        if self.metrics:
            lines += ["", "[metrics]"]
        lines += [f'{_key(server)} = "{str(page).removeprefix("tcp://")}"' for server, page in self.metrics.items()]
        if self.moved:
            lines += ["", "[moved]", *(f'{_key(server)} = "{home}"' for server, home in self.moved.items())]
        if quotas := self.mailboxes.lines():
            lines += ["", "[mailboxes]", *quotas]
        return "\n".join(lines) + "\n"


def is_name(text: str) -> bool:
    """Return whether this may be the name of a server, a domain, an agent or a client."""
    return _name.fullmatch(text) is not None


def natural(name: str) -> tuple[list[tuple[bool, int, str]], str]:
    """Return a sort key that orders numbers in names by their value: s2 before s10."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return [(not part[0].isdigit(), int(part) if part[0].isdigit() else 0, part) for part in parts], name


def parse_topology(text: str, file: str = "topology") -> TopologyFile:
    """Parse the text of a topology file. If it has an error, raise a :class:`TopologyError` that names ``file``."""
    return _Reader(text, file).read()


class _Reader:
    """Parses the text of one topology file. Its errors name the file and, if known, the line."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file

    def error(self, reason: str, *path: str) -> TopologyError:
        line = line_of(self.text, path) if path else None
        return TopologyError(f"{self.file}:{line}: {reason}" if line else f"{self.file}: {reason}")

    def read(self) -> TopologyFile:
        if len(self.text.encode(errors="replace")) > limits.topology_bytes_max:
            raise self.error(f"the topology file has more than {limits.topology_bytes_max} bytes")
        try:
            document = tomllib.loads(self.text)
        except ValueError as error:
            # Besides the parser's own errors, Python refuses numbers with thousands of digits.
            raise self._bad_toml(str(error)) from None
        except RecursionError:
            raise self.error("bad TOML: nested too deeply") from None
        self._known(document, _tables)
        servers = self._servers(document)
        agents, objects = self._agents(document, servers)
        return TopologyFile(
            servers,
            self._domains(document, servers),
            agents,
            self._application(document),
            self._guarantee(document),
            self._metrics(document, servers),
            self.file,
            objects,
            self._mailboxes(document, {agent.name for agent in agents}, servers),
            read_reactions(document, self.error),
            self._moved(document, servers),
        )

    def _bad_toml(self, reason: str) -> TopologyError:
        found = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)", reason)
        if found is None or found[1] is None:
            return self.error(f"bad TOML: {reason}")
        return TopologyError(f"{self.file}:{found[1]}: bad TOML: {reason[: found.start()]} in column {found[2]}")

    def _servers(self, document: dict[str, Any]) -> dict[str, Address]:
        table = self._table(document, "servers", needed=True)
        if len(table) > limits.topology_servers_max:
            raise self.error(f"{len(table)} servers: expected at most {limits.topology_servers_max}", "servers")
        servers: dict[str, Address] = {}
        owner: dict[Address, str] = {}
        for server in sorted(table, key=natural):
            at = ("servers", server)
            self._named("server", server, *at)
            address = _addressed(table[server])
            if address is None:
                expected = 'expected "tcp://HOST:PORT", the port from 1 to 65535'
                raise self.error(f"server {server} = {brief(table[server])}: {expected}", *at)
            if address in owner:
                raise self.error(f"servers {owner[address]} and {server} have the same address {address}", *at)
            owner[address] = server
            servers[server] = address
        return servers

    def _domains(self, document: dict[str, Any], servers: dict[str, Address]) -> tuple[DomainEntry, ...]:
        table = self._table(document, "domains", needed=True)
        if len(table) > limits.topology_servers_max:
            raise self.error(f"{len(table)} domains: expected at most {limits.topology_servers_max}", "domains")
        return tuple(self._domain(name, table[name], servers) for name in sorted(table, key=natural))

    def _domain(self, name: str, entry: Any, servers: dict[str, Address]) -> DomainEntry:
        at = ("domains", name)
        self._named("domain", name, *at)
        self._entry(entry, f"domain {name}", ("servers", "order"), *at)
        members = self._members(f"domain {name}", entry.get("servers"), servers, *at)
        order = entry.get("order", DEFAULT_ORDER)
        if not isinstance(order, str) or not _order.fullmatch(order):
            expected = 'expected an order as "NAME" or "NAME:option=value,…"'
            raise self.error(f"domain {name}: order = {brief(order)}: {expected}", *at, "order")
        return DomainEntry(name, members, _in_sequence(order))

    def _members(self, what: str, given: Any, servers: dict[str, Address], *path: str) -> tuple[str, ...]:
        if not isinstance(given, list) or not given or not all(isinstance(one, str) for one in given):
            raise self.error(f'{what}: expected servers = ["NAME", …] with at least one server', *path)
        for server in given:
            if server not in servers:
                raise self.error(f"{what} names the unknown server {brief(server)}", *path, "servers")
        if len(set(given)) < len(given):
            twice = next(server for server in given if given.count(server) > 1)
            raise self.error(f"{what} names server {twice} twice", *path, "servers")
        return tuple(sorted(given, key=natural))

    def _agents(
        self, document: dict[str, Any], servers: dict[str, Address]
    ) -> tuple[tuple[AgentHome, ...], tuple[ObjectHome, ...]]:
        table = self._table(document, "agents")
        agents = []
        objects = []
        for name in sorted(table, key=natural):
            at, entry = ("agents", name), table[name]
            self._named("agent", name, *at)
            self._entry(entry, f"agent {name}", ("server", "class", "servers", "dead_follow", *KEYS), *at)
            server, kind = entry.get("server"), entry.get("class")
            if "servers" in entry and "server" in entry:
                raise self.error(
                    f"agent {name} has keys server and servers: keep only server (agent) or only servers (object)", *at
                )
            if "servers" not in entry and (not isinstance(server, str) or server not in servers):
                raise self.error(f"agent {name}: server = {brief(server)}: expected a server of this file", *at)
            if not isinstance(kind, str) or not _class.fullmatch(kind):
                raise self.error(f'agent {name}: class = {brief(kind)}: expected "module:Class"', *at)
            if "servers" in entry:
                objects.append(ObjectHome(name, self._members(f"object {name}", entry["servers"], servers, *at), kind))
            else:
                agents.append(AgentHome(name, server, kind))
        return tuple(agents), tuple(objects)

    def _application(self, document: dict[str, Any]) -> str | None:
        table = self._table(document, "application")
        self._known(table, ("module", KEYS[1]), "application")
        module = table.get("module")
        if module is not None and (not isinstance(module, str) or not _module.fullmatch(module)):
            raise self.error(f"module = {brief(module)}: expected a module's name", "application", "module")
        return module

    def _metrics(self, document: dict[str, Any], servers: dict[str, Address]) -> dict[str, Address]:
        table = self._table(document, "metrics")
        pages: dict[str, Address] = {}
        for server in sorted(table, key=natural):
            at = ("metrics", server)
            if server not in servers:
                raise self.error(f"metrics of {brief(server)}: expected a server of this file", *at)
            value = table[server]
            address = _addressed(f"tcp://{value}") if isinstance(value, str) else None
            if address is None:
                raise self.error(f'metrics of {server} = {brief(value)}: expected "HOST:PORT"', *at)
            pages[server] = address
        return pages

    def _moved(self, document: dict[str, Any], servers: dict[str, Address]) -> dict[str, str]:
        table = self._table(document, "moved")
        for server, home in table.items():
            self._named("server", server, "moved", server)
            if server in servers or not isinstance(home, str) or home not in servers:
                expected = 'expected REMOVED = "SERVER": SERVER must be a server of this file, REMOVED must not'
                raise self.error(f"moved: {server} = {brief(home)}: {expected}", "moved", server)
        return {server: table[server] for server in sorted(table, key=natural)}

    def _mailboxes(self, document: dict[str, Any], agents: set[str], servers: dict[str, Address]) -> Mailboxes:
        table, plain = self._table(document, "mailboxes"), Mailboxes()
        named: dict[str, Quota] = {}
        for name in sorted(table, key=natural):
            client, _, server = name.rpartition("@")
            if name not in agents and name not in ("clients", "agents") and not (client and server in servers):
                expected = 'expected "clients", "agents", the name of an agent of this file, or CLIENT@SERVER'
                raise self.error(f"mailbox of {brief(name)}: {expected}", "mailboxes", name)
            of_agent = name == "agents" or name in agents
            named[name] = self._quota(name, table[name], plain.agents if of_agent else plain.clients)
        clients, of_agents = named.pop("clients", plain.clients), named.pop("agents", plain.agents)
        return Mailboxes(clients, of_agents, named, frozenset(self._hold(document)))

    def _quota(self, name: str, entry: Any, plain: Quota) -> Quota:
        at = ("mailboxes", name)
        self._entry(entry, f"mailbox of {name}", ("letters", "bytes", "seconds", "full"), *at)
        for key, value in entry.items():
            whole = isinstance(value, int) or (key == "seconds" and isinstance(value, float))
            number = whole and not isinstance(value, bool) and 0 <= value <= limits.counter_max
            if key != "full" and not number:
                raise self.error(f"mailbox of {name}: {key} = {brief(value)}: expected a number, 0 for no limit", *at)
            if key == "full" and value not in FULL:
                raise self.error(f"mailbox of {name}: full = {brief(value)}: expected {' or '.join(FULL)}", *at)
        return msgspec.structs.replace(plain, **entry)

    def _hold(self, document: dict[str, Any]) -> Iterable[str]:
        for name, entry in self._table(document, "agents").items():
            follow = entry.get("dead_follow", DEAD_FOLLOW[0])
            if "dead_follow" in entry and "servers" in entry:
                raise self.error(f"object {name}: dead_follow is only for agents; remove it", "agents", name)
            if follow not in DEAD_FOLLOW:
                expected = " or ".join(DEAD_FOLLOW)
                raise self.error(f"agent {name}: dead_follow = {brief(follow)}: expected {expected}", "agents", name)
            if follow == "hold":
                yield name

    def _guarantee(self, document: dict[str, Any]) -> str:
        guarantee = document.get("guarantee", "causal")
        if guarantee not in GUARANTEES:
            raise self.error(f"guarantee = {brief(guarantee)}: expected one of {', '.join(GUARANTEES)}", "guarantee")
        return str(guarantee)

    def _table(self, document: dict[str, Any], name: str, *, needed: bool = False) -> dict[str, Any]:
        table = document.get(name, {})
        if not isinstance(table, dict):
            raise self.error(f"{name} = {brief(table)}: expected a table [{name}]", name)
        if needed and not table:
            raise self.error(f"expected a table [{name}] with one entry or more")
        return table

    def _entry(self, entry: Any, what: str, keys: Iterable[str], *path: str) -> None:
        if not isinstance(entry, dict):
            raise self.error(f"{what} = {brief(entry)}: expected {{ {' = …, '.join(keys)} = … }}", *path)
        self._known(entry, keys, *path)

    def _known(self, table: dict[str, Any], keys: Iterable[str], *path: str) -> None:
        for key in table:
            if key not in keys:
                where = f" in {'.'.join(path)}" if path else ""
                raise self.error(f"unknown key {brief(key)}{where}: expected {', '.join(keys)}", *path, key)

    def _named(self, what: str, name: str, *path: str) -> None:
        if not _name.fullmatch(name):
            expected = "expected 1 to 64 letters, digits, _, . or -, but not . or .. alone"
            raise self.error(f"{what} {brief(name)}: {expected}", *path)


def brief(value: Any) -> str:
    """Return a value as JSON on one line, cut to at most 60 characters, for an error message."""
    shown = json.dumps(value, ensure_ascii=False, default=str)
    return shown if len(shown) <= 60 else f"{shown[:57]}…"


def _addressed(text: Any) -> Address | None:
    """Return the address in the text ``tcp://HOST:PORT``; None for any other value."""
    found = _address.fullmatch(text) if isinstance(text, str) else None
    if found is None or not 1 <= int(found["port"]) <= 65_535:
        return None
    return Address(found["host"].strip("[]").lower(), int(found["port"]))


def _in_sequence(order: str) -> str:
    """Return an order's text with its options sorted, so that their sequence in the file does not matter."""
    name, _, options = order.partition(":")
    sorted_options = ",".join(sorted(filter(None, options.split(","))))
    return f"{name}:{sorted_options}" if sorted_options else name


def _key(name: str) -> str:
    return f'"{name}"' if "." in name else name
