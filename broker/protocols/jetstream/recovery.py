"""Opens the stored streams when the server starts. A stream that is damaged or requires a newer
server is offline: requests for it are refused with the reason. Its files remain, and all other
streams are served.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from broker.protocols.jetstream import files, limits
from broker.protocols.jetstream.api.metadata import required_level
from broker.protocols.jetstream.structs import moment_ns

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from broker.protocols.jetstream.account import JetStreamAccount

log = logging.getLogger("broker.jetstream")

_LEVEL: Final = "unsupported - required API level: {}, current API level: {}"


async def report_unknown(root: Path, accounts: Mapping[str, JetStreamAccount]) -> None:
    """Log the folders of accounts that do not exist. Their files remain."""
    known = {each.folder.name for each in accounts.values() if each.folder is not None}
    for folder in await asyncio.to_thread(lambda: list(files.account_folders(root))):
        if folder.name not in known:
            log.warning("no account has the streams in %s; they are not served", folder)


async def recover(account: JetStreamAccount) -> None:
    """Open the streams of an account, finish deletions, and undo unfinished restorations."""
    folder = account.folder
    if folder is None:
        return
    found, unfinished = await asyncio.to_thread(files.find_streams, folder)
    present = {each.folder.name for each in found}
    for path in unfinished:
        token = path.name.partition(".")[0]
        if not path.name.endswith(files.UPLOAD) and token not in present:
            await account.drop_log(token)
        await asyncio.to_thread(files.remove, path)
    for each in found:
        if each.is_empty and not _has_log(account, each.folder.name):
            # The server ended during its creation: the request was not answered.
            log.info("stream '%s > %s' was not created completely", account.name, each.name)
            await asyncio.to_thread(files.remove, each.folder)
            continue
        problem = each.problem or _open(account, each)
        if problem:
            account.offline[each.name] = problem
            if each.stored is not None:
                account.topics.stream_offline(each.stored.config)
            log.error("stream '%s > %s' is offline: %s", account.name, each.name, problem)


def _has_log(account: JetStreamAccount, token: str) -> bool:
    engine, name = account.context.engine, files.log_of(account.name, token)
    return name in engine.owned or name in engine.quarantined


def _open(account: JetStreamAccount, found: files.StreamFolder) -> str:
    """Open one stream. Returns why it cannot be served; empty: it is served."""
    assert found.stored is not None
    config = found.stored.config
    level = required_level(config.metadata)
    if level > limits.JS_ASSET_LEVEL_MAX:
        return _LEVEL.format(level, limits.JS_ASSET_LEVEL_MAX)
    if files.token_of(config.name) != found.folder.name:
        return f"its folder {found.folder.name} belongs to another name"
    try:
        stream = account.open(config, moment_ns(found.stored.created))
        account.consumers.restore(stream)
        account.origins.stream_opened(stream, found.folder if config.storage == "file" else None)
    except Exception as problem:  # one stream must not prevent the start of the server
        account.close_stream(config.name)
        return str(problem) or type(problem).__name__
    return ""
