"""``antecede credentials``: keys and certificates for the servers, clients and operators of a topology."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any

import typer

from antecede.cli.options import JSON, TOPOLOGY
from antecede.cli.wording import counted
from antecede.errors import UsageError

if TYPE_CHECKING:
    from antecede.access.model import Identity, Key

_out = typer.Option(
    None,
    "--out",
    metavar="DIR",
    help="Folder of the keys. Default: credentials/ in the folder of the topology file.",
)
_access = typer.Option(
    None,
    "--access",
    metavar="FILE",
    help="File that lists who may do what. Default: access.toml in the folder of the topology file.",
)
_days = typer.Option(365.0, "--days", min=0.0, max=3_650.0, help="Number of days until keys and certificates expire.")
_name = typer.Argument(
    ...,
    metavar="NAME",
    help="Name of a server, client or operator. If several of them have this name: ROLE/NAME, such as client/alice.",
)
_clients = typer.Option([], "--client", metavar="NAME", help="Name of a client; may be repeated.")
_operators = typer.Option(
    [], "--operator", metavar="NAME", help="Name of an operator; may be repeated. Default: admin."
)
_reload = "now: kill -HUP every server (or antecede up), so that it reads {}"


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True, help="Manage the keys and certificates of servers, clients and operators."
    )
    app.add_typer(group, name="credentials")

    @group.command("create")
    def create(
        topology: str = TOPOLOGY,
        client: list[str] = _clients,
        operator: list[str] = _operators,
        days: float = _days,
        tls: bool = typer.Option(True, "--tls/--no-tls", help="Also create certificates, so that connections use TLS."),
        system: str | None = typer.Option(
            None,
            metavar="SYSTEM",
            help="Name of the system. The names in certificates begin with spiffe://SYSTEM/. Default: the topology "
            "file's name.",
        ),
        out: str | None = _out,
        access: str | None = _access,
        as_json: bool = JSON,
    ) -> None:
        """Create access.toml, a certificate authority, and keys and certificates for all servers, clients and
        operators.

        To add clients and operators later, run the command again: existing keys and certificates stay. New clients have
        all permissions that clients can have. To allow less, edit access.toml.
        """
        issue = _Issue(topology, out, access, as_json, days)
        issue.create(client, operator, days, tls, system or Path(topology).stem)

    @group.command("rotate")
    def rotate(
        topology: str = TOPOLOGY,
        name: str = _name,
        days: float = _days,
        out: str | None = _out,
        access: str | None = _access,
        as_json: bool = JSON,
    ) -> None:
        """Create another key for an identity. Both keys are valid until you revoke the old key.

        After this command:

        1. Copy the new access.toml to all servers. If NAME is a server, also copy the folder of NAME to this server.
        Then send SIGHUP to all servers.

        2. If NAME is a client or an operator, give the folder of NAME to this client or operator. If NAME is a server,
        give all clients and operators their folders again, because these folders contain the servers' public keys.

        3. When the new folders are in use, run `antecede credentials revoke TOPOLOGY NAME --old`. Copy access.toml to
        all servers again, and send SIGHUP to all servers again. Then only the new key is valid.
        """
        _Issue(topology, out, access, as_json, days).rotate(name, days)

    @group.command("revoke")
    def revoke(
        topology: str = TOPOLOGY,
        name: str = _name,
        old: bool = typer.Option(False, "--old", help="Revoke all keys except the newest key."),
        out: str | None = _out,
        access: str | None = _access,
        as_json: bool = JSON,
    ) -> None:
        """Revoke the keys of a server, a client or an operator.

        After this command, copy access.toml to all servers, and send SIGHUP to all servers. Then the servers end the
        sessions that use a revoked key.
        """
        _Issue(topology, out, access, as_json).revoke(name, old)

    @group.command("show")
    def show(
        topology: str = TOPOLOGY,
        access: str | None = _access,
        as_json: bool = JSON,
    ) -> None:
        """List the identities in access.toml, their keys and permissions, and the dates on which keys expire."""
        from antecede.live.keys import read_access

        found = read_access(access or Path(topology).parent / "access.toml")
        document: dict[str, Any] = {
            "file": found.name,
            "digest": found.digest,
            "identities": [
                {
                    "role": one.role,
                    "name": one.name,
                    "keys": [{"key": key.public, "expires": key.expires} for key in one.keys],
                    "certificates": list(one.certificates),
                    "certificate_alone": one.certificate_alone,
                    "tokens": len(one.tokens),
                    "permissions": {
                        action: list(getattr(one, action))
                        for action in ("names", "send", "receive", "subscribe", "call", "operate")
                        if getattr(one, action)
                    },
                }
                for one in found.everyone()
            ],
        }
        if as_json:
            print(json.dumps(document, indent=2))
            return
        print(f"{found.name}: digest {found.digest}")
        for one in document["identities"]:
            print(f"{one['role']} {one['name']}: {'; '.join(map(_key_line, one['keys'])) or _unlisted(one)}")
            for action, patterns in one["permissions"].items():
                print(f"  {action}: {', '.join(patterns)}")


def _key_line(key: dict[str, Any]) -> str:
    shown = key["key"][:20] + "…"
    if key["expires"] is None:
        return f"{shown} does not expire"
    when = datetime.fromtimestamp(key["expires"], UTC)
    return f"{shown} {'expired' if key['expires'] <= time() else 'expires'} {when:%Y-%m-%d}"


def _unlisted(one: dict[str, Any]) -> str:
    if one["certificate_alone"]:
        return "no key, proved by its certificate"
    if one["tokens"]:
        return f"no key; {counted(one['tokens'], 'token')} for the pages of the metrics server"
    return "no key: it cannot connect"


def _next_steps(identity: "Identity", keys: "tuple[Key, ...]", revoke: str) -> str:
    """Return one line that says what the user must do after a rotation of keys."""
    from antecede.access.model import SERVER

    valid = sum(key.expires is None or key.expires > time() for key in keys)
    expired = f" and {counted(len(keys) - valid, 'expired key')}" if valid < len(keys) else ""
    server = identity.role == SERVER
    folders = "give all clients and operators their folders again" if server else "give it its new folder"
    end = f"; when {'they use them' if server else 'it uses that'}: antecede credentials {revoke}"
    return f"{identity.label} has {counted(valid, 'valid key')}{expired}. Then {folders}{end if len(keys) > 1 else ''}"


class _Issue:
    """Does the work of the commands ``create``, ``rotate`` and ``revoke``. An object is used for one command only."""

    def __init__(
        self, topology: str, out: str | None, access: str | None, as_json: bool, days: float | None = None
    ) -> None:
        from antecede.cli.servers import read_topology
        from antecede.live.issuing import AccessText
        from antecede.live.keys import require_cryptography

        require_cryptography()
        if days is not None and not days > 0:
            raise UsageError(f"--days {days:g}: expected more than 0")
        self._as_json = as_json
        self._file = read_topology(topology)
        directory = Path(topology).parent
        self._folder = directory / "credentials" if out is None else Path(out)
        self._text: AccessText = AccessText(directory / "access.toml" if access is None else Path(access))

    def create(self, clients: list[str], operators: list[str], days: float, tls: bool, system: str) -> None:
        from antecede.access.model import CLIENT, OPERATOR, SERVER
        from antecede.live.issuing import Authority
        from antecede.topology import is_name

        for name in (*clients, *operators, system):
            if not is_name(name):
                raise UsageError(f"name {name!r}: expected 1 to 64 letters, digits, _, . or -")
        known = self._text.access
        if not operators and not known.operators:
            operators = ["admin"]
        asked = [(SERVER, name) for name in self._file.servers]
        asked += [(CLIENT, name) for name in clients] + [(OPERATOR, name) for name in operators]
        wanted = [one for one in dict.fromkeys(asked) if one[1] not in known.identities(one[0])]
        present = [f"{role} {name}" for role, name in dict.fromkeys(asked) if role != SERVER]
        present = [one for one in present if tuple(one.split()) not in wanted]
        if not wanted and present:
            raise UsageError(
                f"{known.name}: {', '.join(present)} exists already: use antecede credentials rotate for a new key"
            )
        if not wanted:
            raise UsageError(
                f"{self._text.path}: all servers have credentials already: to add others, use --client or --operator"
            )
        place = self._folder / "authority"
        authority = None
        if tls:
            if not Authority.is_in(place) and any(one.certificates for one in known.everyone()):
                raise UsageError(
                    f"{place}: there is no authority, and {known.name} has certificates that an authority signed. Copy "
                    f"the folder of that authority to {place}: servers do not accept certificates of a new authority"
                )
            authority = Authority.read(place) if Authority.is_in(place) else Authority.create(place, system)
        elif Authority.is_in(place):
            raise UsageError(f"{place} exists, so these credentials use TLS: run the command without --no-tls")
        for one in present:
            print(f"antecede: {one} exists already and stays as it is", file=sys.stderr)
        for role, name in wanted:
            uri = f"spiffe://{system}/{role}/{name}"
            self._text.add(self._issued(role, name, uri if tls else "", authority, days, ()))
        self._finish(wanted)

    def rotate(self, name: str, days: float) -> None:
        from antecede.access.model import SERVER
        from antecede.live.issuing import Authority, find
        from antecede.live.keys import CERTIFICATE

        identity = find(self._text.access, name)
        valid = [key for key in identity.keys if key.expires is None or key.expires > time()]
        if identity.role == SERVER and len(valid) > 1:
            # Its folder keeps one earlier key, so clients that know only the oldest one could not connect.
            raise UsageError(
                f"{identity.label} has {len(valid)} valid keys already: first revoke the old key with "
                f"antecede credentials revoke {self._file.name} {name} --old"
            )
        uri = next((one for one in identity.certificates if one.startswith("spiffe://")), "")
        tls = (self._place(identity.role, identity.name) / CERTIFICATE).exists()
        place = self._folder / "authority"
        authority = Authority.read(place) if tls or Authority.is_in(place) else None
        issued = self._issued(identity.role, identity.name, uri, authority, days, identity.keys)
        self._text.set_keys(identity, issued.keys)
        self._finish([(identity.role, identity.name)])
        print(_next_steps(identity, issued.keys, f"revoke {self._file.name} {name} --old"), file=sys.stderr)

    def revoke(self, name: str, old: bool) -> None:
        from antecede.live.issuing import find

        identity = find(self._text.access, name)
        if identity.certificate_alone:
            raise UsageError(
                f"{identity.label} has no keys, only a certificate: to end its access, remove the table of "
                f"{identity.label} from {self._text.path}"
            )
        keys = identity.keys[-1:] if old else ()
        if keys == identity.keys:
            raise UsageError(f"{identity.label} has {'only one key' if old else 'no keys'}: nothing to revoke")
        self._text.set_keys(identity, keys)
        self._finish([], {"role": identity.role, "name": identity.name, "revoked": len(identity.keys) - len(keys)})

    def _place(self, role: str, name: str) -> Path:
        from antecede.live.issuing import FOLDERS

        return self._folder / FOLDERS[role] / name

    def _issued(self, role: str, name: str, uri: str, authority: Any, days: float, keys: tuple[Any, ...]) -> Any:
        """Write a folder with a new key. If there is a certificate authority and ``uri`` is not empty, also write a
        certificate for this key. Return the identity. The identity has the previous keys (``keys``), the new key, and
        all permissions that an identity with this role can have."""
        from msgspec.structs import replace

        from antecede.access.model import SERVER, Identity, Key
        from antecede.live.issuing import new_key, write_folder

        key = new_key()
        certificate = None
        if authority is not None and uri:
            hosts = (name, self._file.servers[name].host) if role == SERVER and name in self._file.servers else ()
            certificate = authority.issue(key, name, uri, hosts, days)
        folder = self._place(role, name)
        pem = None if authority is None else authority.pem
        write_folder(folder, role, name, key, certificate, pem, [one.public for one in keys])
        granted = Key(key.public, float(int(time() + days * 86_400)))
        issued = Identity(role, name, (*keys, granted), (uri,) if uri else ())
        return replace(issued, **dict.fromkeys(_actions.get(role, ()), ("*",)))

    def _finish(self, issued: list[tuple[str, str]], revoked: dict[str, Any] | None = None) -> None:
        """Write the public keys of the servers into all folders of clients and operators. Then write the access file,
        and print the result."""
        from antecede.access.model import CLIENT, OPERATOR
        from antecede.live.issuing import FOLDERS, write_servers

        servers = list(self._text.access.servers.values())
        for role in (CLIENT, OPERATOR):
            for folder in sorted((self._folder / FOLDERS[role]).glob("*/")):
                write_servers(folder, servers)
        # Last: until then, a command that was interrupted can be repeated.
        self._text.write()
        folders = [{"role": role, "name": name, "folder": str(self._place(role, name))} for role, name in issued]
        document = {"file": str(self._text.path), "digest": self._text.access.digest, "issued": folders}
        if self._as_json:
            print(json.dumps({**document, "revoked": revoked}, indent=2))
        else:
            for one in folders:
                print(f"{one['role']} {one['name']}: {one['folder']}")
            if revoked is not None:
                print(f"{revoked['role']} {revoked['name']}: {counted(revoked['revoked'], 'key')} revoked")
            print(f"{document['file']}: digest {document['digest']}")
        if self._text.existed:
            print(_reload.format(self._text.path.name), file=sys.stderr)


_actions = {"client": ("send", "receive", "subscribe", "call"), "operator": ("operate",)}
