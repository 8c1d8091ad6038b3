"""One broker of each kind for all tests of a process; a kind that cannot be started here is skipped with the reason."""

from collections.abc import Iterator

import pytest

from helpers.brokers import KINDS, Broker, missing

Factory = pytest.TempPathFactory


@pytest.fixture(scope="session")
def brokers() -> Iterator[dict[str, Broker]]:
    running: dict[str, Broker] = {}
    yield running
    for one in running.values():
        one.stop()


@pytest.fixture(params=KINDS)
def broker(request: pytest.FixtureRequest, brokers: dict[str, Broker], tmp_path_factory: Factory) -> Broker:
    return running(request.param, brokers, tmp_path_factory)


def running(kind: str, brokers: dict[str, Broker], factory: Factory) -> Broker:
    if reason := missing(kind):
        pytest.skip(reason)
    if kind not in brokers:
        brokers[kind] = Broker(kind, factory.mktemp(kind))
        brokers[kind].start()
    return brokers[kind]
