"""The table of answers of an authorization service, given to nats-server itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.logins.callouts import (
    ANSWERS,
    ISSUER,
    SEALED,
    SERVICE_KEY,
    Operation,
    Service,
    configured,
)
from support.servers.originals import nats_server_on_path

from tests.interop.test_nats_logins import serve
from tests.unit.protocols.nats.auth.test_callout import BOB, OWN, Trial, trial_of

DEADLINE_S = 30

pytestmark = pytest.mark.skipif(
    not nats_server_on_path(), reason="no nats-server that tests can compare with"
)


async def original(folder: Path, config: str, trial: Trial) -> None:
    process, address = await serve(folder, config)
    trial.answers = tuple(one for one in trial.answers if not one.only_ours)
    try:
        async with asyncio.timeout(DEADLINE_S):
            await trial.run(address)
    finally:
        process.terminate()
        await process.wait()


async def test_answers(tmp_path: Path) -> None:
    await original(tmp_path, configured()[0], Trial(Service(ISSUER), OWN, ANSWERS, BOB))


async def test_sealed_answers(tmp_path: Path) -> None:
    service = Service(ISSUER, SERVICE_KEY)
    config, _ = configured(SERVICE_KEY.public)
    await original(tmp_path, config, Trial(service, OWN, SEALED, BOB))
    assert all(request.sealed for request in service.requests)


@pytest.mark.parametrize("xkey", [False, True], ids=["open", "sealed"])
async def test_answers_in_operator_mode(tmp_path: Path, xkey: bool) -> None:
    operation = Operation.make(SERVICE_KEY.public if xkey else "")
    await original(tmp_path, operation.configured()[0], trial_of(operation))
