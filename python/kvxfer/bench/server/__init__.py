# SPDX-FileCopyrightText: Copyright (c) 2026, kvxfer contributors
# SPDX-License-Identifier: Apache-2.0
"""A small disaggregated server: prefill and decode processes behind a router, on one machine."""

import argparse
import asyncio
import contextlib
import functools
import importlib.util
import json
import signal
from typing import Any

from kvxfer import UnsupportedError
from kvxfer.bench.engine.page_cache import PageCache
from kvxfer.bench.engine.setting import RankSetting
from kvxfer.bench.server.options import add_arguments, model_info, rank_settings
from kvxfer.bench.server.router import Router
from kvxfer.bench.server.worker import Worker, start_decode, start_prefill

__all__ = ["add_arguments", "run"]

_STOP_TIMEOUT_S = 2.0


def run(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM.

    Raises
    ------
    UnsupportedError
        If aiohttp is not installed.
    """
    if importlib.util.find_spec("aiohttp") is None:
        raise UnsupportedError("aiohttp is not installed, expected it: pip install kvxfer[bench]")
    settings = rank_settings(arguments)
    folder = settings[0].model.folder
    if folder is not None:
        from kvxfer.bench.engine.models import prepare_weights

        prepare_weights(folder)
    asyncio.run(_serve(arguments, *settings))
    return 0


async def _serve(arguments: argparse.Namespace, prefill: RankSetting, decode: RankSetting) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    async with contextlib.AsyncExitStack() as closing:
        workers = (
            _worker("prefill", start_prefill, prefill, keeps_prefixes=True),
            _worker("decode", start_decode, decode, keeps_prefixes=arguments.decode_prefix_cache),
        )
        for worker in workers:
            closing.push_async_callback(worker.stop)
        starting = asyncio.gather(*(worker.start() for worker in workers))
        if await _is_first(stopping, starting):
            return
        router = Router(*workers)
        said = {**await _listen(arguments, router, closing), **model_info(arguments)}
        print(json.dumps(said), flush=True)
        await stopping.wait()


def _worker(name: str, start: Any, setting: RankSetting, *, keeps_prefixes: bool) -> Worker:
    make_pages = functools.partial(
        PageCache,
        setting.page_count,
        setting.page_size * setting.ranks,
        keeps_prefixes=keeps_prefixes,
    )
    return Worker(name, functools.partial(start, setting=setting), make_pages)


async def _is_first(stopping: asyncio.Event, starting: "asyncio.Future[Any]") -> bool:
    """Wait for the ranks; return whether the server is to stop before they are there."""
    stop = asyncio.create_task(stopping.wait())
    await asyncio.wait({stop, starting}, return_when=asyncio.FIRST_COMPLETED)
    if not stop.cancel():
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        return True
    await starting
    return False


async def _listen(
    arguments: argparse.Namespace, router: Router, closing: contextlib.AsyncExitStack
) -> dict[str, str]:
    """Open the three addresses and return them."""
    from aiohttp import web

    from kvxfer.bench.server.http import make_router_app, make_worker_app

    apps = {
        "router": (make_router_app(router, model_info(arguments)), arguments.port),
        "prefill": (make_worker_app(router.prefill), arguments.prefill_port),
        "decode": (make_worker_app(router.decode), arguments.decode_port),
    }
    urls = {}
    for name, (app, port) in apps.items():
        runner = web.AppRunner(
            app,
            handle_signals=False,
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=_STOP_TIMEOUT_S,
        )
        closing.push_async_callback(runner.cleanup)
        await runner.setup()
        await web.TCPSite(runner, arguments.host, port).start()
        urls[name] = f"http://{arguments.host}:{runner.addresses[0][1]}"
    return urls
