"""Does what a test says, line by line, with the async client in examples/clients, and says what came of it."""
import asyncio
import os
import sys
from contextlib import suppress

from drive import ENDS, Failed, describe, made, say, shown, take_over
from fencepost_async import AsyncFencepost, AsyncLease, AsyncPlace, FencepostError, NothingDone, Refused, Result, Superseded


async def said() -> list[str]:
    line: str = await asyncio.to_thread(sys.stdin.readline)
    return line.split()


async def hold(fencepost: AsyncFencepost, key: str, ttl_s: str, wait_s: str) -> AsyncLease:
    async with fencepost.hold(key, float(ttl_s), float(wait_s)) as lease:
        say(f"granted {lease.fencing_token}")
        while (word := (await said())[0]) != "leave":
            if word == "fail":
                raise Failed
            if word == "lost":
                await lease.lost.wait()
            lease.check()
            say("held")
    say("released")
    return lease


async def cancel(fencepost: AsyncFencepost, key: str, ttl_s: str, wait_s: str) -> None:
    acquiring = asyncio.create_task(fencepost.acquire(key, float(ttl_s), float(wait_s)))
    await said()
    acquiring.cancel()
    with suppress(asyncio.CancelledError):
        await acquiring
        raise AssertionError("it is granted")
    say("canceled")


async def does_nothing(_: AsyncPlace) -> str:
    raise NothingDone


async def once(fencepost: AsyncFencepost, words: list[str]) -> None:
    _, key, ttl_s, wait_s, fingerprint = words[:5]

    async def work(place: AsyncPlace) -> Result | str:
        say(f"works {place.earlier} {place.fencing_token}")
        while True:
            word = (await said())[0]
            if word == "lost":
                await place.lost.wait()
                say("lost")
            elif word == "inside":
                await fencepost.once(f"{key}/inside", does_nothing)
            elif word in ENDS:
                raise ENDS[word]
            else:
                return made(word, place)

    result = await fencepost.once(
        key, work, float(ttl_s), float(wait_s), 3600, "drive", fingerprint, takeover=take_over(words)
    )
    say(shown(result))


async def do(fencepost: AsyncFencepost, lease: AsyncLease | None, words: list[str]) -> AsyncLease | None:
    match words:
        case ["acquire", key, ttl_s, wait_s]:
            lease = await fencepost.acquire(key, float(ttl_s), float(wait_s))
            say(f"granted {lease.fencing_token}")
        case ["share", key, ttl_s, slots]:
            lease = await fencepost.acquire(key, float(ttl_s), slots=slots if slots == "any" else int(slots))
            say(f"granted {lease.fencing_token} {lease.slot}")
        case ["both", key, other, ttl_s, wait_s]:
            lease = await fencepost.acquire((key, other), float(ttl_s), float(wait_s))
            say(f"granted {lease.fencing_tokens[key]} {lease.fencing_tokens[other]}")
        case ["renew", *ttl_s] if lease:
            await fencepost.renew(lease, *map(float, ttl_s))
            say("renewed")
        case ["release"] if lease:
            await fencepost.release(lease)
            say("released")
        case ["hold", key, ttl_s, wait_s]:
            lease = await hold(fencepost, key, ttl_s, wait_s)
        case ["check"] if lease:
            lease.check()
            say("held")
        case ["cancel", key, ttl_s, wait_s]:
            await cancel(fencepost, key, ttl_s, wait_s)
        case ["once", *_]:
            await once(fencepost, words)
        case _:
            raise ValueError(words)
    return lease


async def main() -> None:
    fencepost = AsyncFencepost(retry_for_s=float(os.environ["RETRY_FOR_S"]), try_for_s=float(os.environ["TRY_FOR_S"]))
    lease: AsyncLease | None = None
    error: Exception | None = None
    while words := await said():
        try:
            if words == ["why"]:
                say(describe(error))
            elif words == ["number"] and isinstance(error, Superseded):
                say(error.fencing_token)
            else:
                lease = await do(fencepost, lease, words)
        except (FencepostError, Failed, NothingDone, TypeError) as raised:
            error = raised
            say(type(error).__name__.lower())


try:
    asyncio.run(main())
except Refused as refused:  # The settings, when it was made.
    say("refused")
    say(refused)
