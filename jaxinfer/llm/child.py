"""The engine process: `python -m jaxinfer.llm.child FD`. It owns JAX and the scheduler and talks over one socket.

It ends when its socket does, at any moment, so no server, however it died, leaves an engine behind.
"""

import os
import signal
import socket
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

from jaxinfer.config import EngineConfig
from jaxinfer.errors import EngineError, JaxInferError
from jaxinfer.llm.core import Core, StartCore
from jaxinfer.llm.events import Event, OnEvent
from jaxinfer.llm.transport import Handshake
from jaxinfer.llm.wire import Channel, Failure, FromEngine, Profiled, ToEngine
from jaxinfer.runtime import nvidia

STATS_EVERY_S = 0.1
SETTLE_S = 0.001  # without work, before statistics are told: the server is at what a client waits for


def main(start: StartCore, *, has_device: bool = True) -> None:
    """Be an engine process. start: builds the engine from the first message's settings.    has_device: False of a dry
    run, which hides no GPU.
    """
    # a Ctrl-C or a SIGTERM to the group is the server's to handle: it drains, then closes the socket
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    channel: Channel[FromEngine, ToEngine] = Channel(socket.socket(fileno=int(sys.argv[1])), ToEngine)
    first = channel.receive()
    if first is None or first.start is None:
        return
    built: Future[Core] = Future()
    threading.Thread(target=_receive, args=(channel, built), name="jaxinfer-inbox", daemon=True).start()
    try:
        if has_device and first.start.config.device != "cpu":
            nvidia.show_only(first.start.replica)
        core = start(first.start.config, _tell(channel))
        if first.start.whole:
            core.warming.result()
        channel.send(FromEngine(handshake=Handshake(core.info, core.limits, str(core.folder))))
        core.warming.add_done_callback(lambda done: _warmed(channel, done))
        built.set_result(core)
        _run(channel, core)
    except JaxInferError as error:  # said by whoever started us, in one line; a traceback would bury it
        channel.send(FromEngine(failure=Failure.of(error)))
        sys.exit(error.exit_code)
    except Exception as error:
        channel.send(FromEngine(failure=Failure.of(error)))
        raise


def _start_core(config: EngineConfig, on_event: OnEvent) -> Core:
    """build.start_core, with the device made ready while what else that needs is imported: a second or two each."""
    from jaxinfer.runtime.device import device_for

    with ThreadPoolExecutor(1, thread_name_prefix="jaxinfer-device") as pool:
        device = pool.submit(device_for, config)
        from jaxinfer.llm.build import start_core

        return start_core(config, on_event, lambda _: device.result())


def _tell(channel: Channel[FromEngine, ToEngine]) -> OnEvent:
    def tell(event: Event) -> None:
        channel.send(FromEngine(event=event))

    return tell


def _warmed(channel: Channel[FromEngine, ToEngine], warming: "Future[None]") -> None:
    if error := warming.exception():
        channel.send(FromEngine(failure=Failure.of(error)))
        os._exit(EngineError.exit_code)


def _receive(channel: Channel[FromEngine, ToEngine], built: "Future[Core]") -> None:
    try:
        while (received := channel.receive()) is not None:
            core = built.result()
            if received.profile is None:
                core.engine.inbox.put(received.message)
            else:  # to write a trace takes seconds
                threading.Thread(target=_profile, args=(channel, core, received.profile.folder), daemon=True).start()
    except Exception as error:  # deaf, it would look well and answer nobody; the server starts another
        channel.send(FromEngine(failure=Failure.of(error)))
        os._exit(EngineError.exit_code)
    os._exit(0)  # the server is gone: there is nobody to compute for and nothing to save


def _profile(channel: Channel[FromEngine, ToEngine], core: Core, folder: str | None) -> None:
    try:
        core.runner.profile(folder)
    except Exception as error:  # the asker's, and no reason for the engine to end
        channel.send(FromEngine(profiled=Profiled(f"{type(error).__name__}: {error}")))
    else:
        channel.send(FromEngine(profiled=Profiled()))


def _run(channel: Channel[FromEngine, ToEngine], core: Core) -> None:
    told, was_failing = 0.0, False
    try:
        while True:
            outputs = core.engine.step()
            if core.engine.is_failing != was_failing:  # before its clients know
                was_failing = core.engine.is_failing
                channel.send(FromEngine(stats=core.stats()))
            if outputs:
                channel.send(FromEngine(outputs=outputs))
            if not core.engine.has_work:
                core.engine.wait(timeout_s=SETTLE_S)
            idle = not core.engine.has_work
            if idle or time.monotonic() - told > STATS_EVERY_S:
                channel.send(FromEngine(stats=core.stats()))
                told = time.monotonic()
            if idle:
                core.engine.wait(timeout_s=1.0)  # at most, so that the age of the last step stays told
    finally:
        channel.send(FromEngine(stats=core.stats()))  # the last failure counts too


if __name__ == "__main__":
    nvidia.ask_early()  # while JAX is imported, which takes seconds too
    main(_start_core)
