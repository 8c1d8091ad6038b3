"""The files of deploy/: every metric of the dashboard exists, and every command of the containers is understood."""

import asyncio
import json
import re
import tomllib
from pathlib import Path

import pytest
import typer

from antecede.cli import build
from antecede.cli.servers import usable_topology
from antecede.live import ServerRuntime
from antecede.live.metrics import MetricsPage
from antecede.topology import parse_topology
from helpers.ports import free_ports

_root = Path(__file__).resolve().parents[2]
_deploy = _root / "deploy"
_compose = (_deploy / "compose.yaml").read_text(encoding="utf-8")


def _metrics(folder: Path) -> str:
    """The text of a server's metrics page."""

    async def main() -> str:
        first, second = free_ports(2)
        file = parse_topology(
            f'[servers]\ns1 = "tcp://127.0.0.1:{first}"\ns2 = "tcp://127.0.0.1:{second}"\n'
            '[domains]\nA = { servers = ["s1", "s2"] }\n'
        )
        server = ServerRuntime(file, "s1", str(folder / "s1"), agents={})
        page = MetricsPage(server.core.guard.authoriser)
        page.show(server)
        text = (await page.metrics("", "GET")).decode()
        await server.stop(0)
        return text

    return asyncio.run(main())


def test_the_dashboard_uses_metrics_that_exist(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    page = _metrics(tmp_path)
    exposed = set(re.findall(r"^([a-z_]+)(?:\{| )", page, re.MULTILINE))
    # Prometheus itself adds whether it reached a server.
    exposed |= {"up"}
    dashboard = json.loads((_deploy / "grafana" / "antecede.json").read_text(encoding="utf-8"))
    targets = [target for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(targets) > 25
    for target in targets:
        used = set(re.findall(r"\b((?:antecede|process)_[a-z_]+|up)\b", target["expr"]))
        assert used, target
        assert used <= exposed, f"{sorted(used - exposed)} in {target['expr']}"
        labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) - {"instance"}
        assert all(f'{label}="' in page for label in labels), target
    ours = {name for name in exposed if name.startswith("antecede_")}
    shown = {name for target in targets for name in re.findall(r"antecede_[a-z_]+", target["expr"])}
    left_out = {re.sub(r"_(bucket|sum|count|created|total)$", "", name) for name in ours} - {
        re.sub(r"_(bucket|total)$", "", name) for name in shown
    }
    assert left_out <= {"antecede_server_info"}, "a metric without a panel"
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)


def test_containers_run_commands_that_are_understood() -> None:
    serve = typer.main.get_command(build(["serve"])).commands["serve"]  # type: ignore[attr-defined]
    file = usable_topology(str(_deploy / "snowflake.toml"))
    commands = [json.loads(text) for text in re.findall(r"^    command: (\[.*\])$", _compose, re.MULTILINE)]
    services = re.findall(r"^  (s\d):\n", _compose, re.MULTILINE)
    found = []
    for words in commands:
        assert words[0] == "serve"
        context = serve.make_context("serve", words[1:])
        found.append(context.params["server"])
        assert context.params["data"] == f"/data/{context.params['server']}"
        assert context.params["topology"] == "/app/snowflake.toml"
    assert found == list(file.servers)
    assert services == [address.host for address in file.servers.values()]
    targets = re.search(r"targets: (\[.*\])", (_deploy / "prometheus.yml").read_text(encoding="utf-8"))
    assert targets is not None
    assert json.loads(targets[1]) == [f"{service}:9100" for service in services]
    for path in re.findall(r"\"?(\.\.?/[\w./-]+):/", _compose):
        assert (_deploy / path).exists(), path


def test_the_image_installs_extras_that_exist() -> None:
    dockerfile = (_deploy / "Dockerfile").read_text(encoding="utf-8")
    named = re.search(r'"\.\[([a-z,]+)\]"', dockerfile)
    assert named is not None
    project = tomllib.loads((_root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(named[1].split(",")) <= project["optional-dependencies"].keys()
    ignored = (_root / ".dockerignore").read_text(encoding="utf-8")
    for line in re.findall(r"^COPY (?!--from)(.*) \S+$", dockerfile, re.MULTILINE):
        for name in line.split():
            assert (_root / name).exists()
            assert f"!{name}\n" in ignored
