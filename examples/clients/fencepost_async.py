"""A Fencepost client for `async` code, from Python 3.10 on. Copy it into your project, next to `fencepost.py`.
It sends each request in a thread, so the event loop never waits for a gateway."""
import asyncio, threading, uuid
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from typing import Any, AsyncIterator, Awaitable, Callable, TypeVar

from fencepost import (Abandoned, Busy, Fencepost, FencepostError, Keys, Lease, Lost, Mismatch, NothingDone, Place,
                       Refused, Result, Superseded, Unavailable, Unknown, now, own, result_of)

__all__ = ["Abandoned", "AsyncFencepost", "AsyncLease", "AsyncPlace", "Busy", "FencepostError", "Lost", "Mismatch",
           "NothingDone", "Refused", "Result", "Superseded", "Unavailable", "Unknown"]
T = TypeVar("T")

def in_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Like `asyncio.to_thread`, but each call has its own thread: many that wait must not delay a renewal."""
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()

    def run() -> None:
        try: result.set_result(work())
        except BaseException as error: result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return asyncio.wrap_future(result)

async def to_the_end(work: Callable[[], T]) -> T:
    """Also if the task is canceled meanwhile: with the task, the program may end, and with that the thread."""
    canceled = None
    try: asked = in_thread(work)
    except RuntimeError: return work()  # There is no thread left, and what is done must be stored: so the loop waits.
    while not asked.done():
        try: await asyncio.wait([asked])
        except asyncio.CancelledError as error: canceled = error
    if canceled: asked.exception(); raise canceled  # What came of it is not told then.
    return asked.result()

class AsyncLease(Lease):
    """In `hold` and `once`, `await lease.lost.wait()` returns when the lease is lost. After `acquire`, use `check`."""
    lost: asyncio.Event  # type: ignore[assignment]

    def __init__(self, lease: Lease) -> None: vars(self).update(vars(lease), lost=asyncio.Event())

class AsyncPlace(AsyncLease, Place): path = Place.path  # What a `Place` is, with that event.

class AsyncFencepost:
    """Takes what `Fencepost` takes, and does what it does. If a task is canceled while it acquires or holds a lock, the
    lock is released."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: self.blocking = Fencepost(*args, **kwargs)

    async def acquire(self, key: Keys, ttl_s: float = 30, wait_s: float = 0, owner: str = "",
                      slots: int | str = 1) -> AsyncLease:
        key, token = own(key), uuid.uuid4().hex
        def take() -> Lease: return self.blocking.acquire(key, ttl_s, wait_s, owner, token, slots)
        return AsyncLease(await self._take("/lock", key, token, take))

    async def _take(self, path: str, key: Keys, token: str, take: Callable[[], T]) -> T:
        is_canceled = threading.Event()
        def free() -> None: self.blocking._leave(path, key, token)
        def work() -> T:
            taken = take()
            if is_canceled.is_set(): free()
            return taken

        try:
            taken = await in_thread(work)
        except asyncio.CancelledError:  # After this, the gateway grants nothing to what the thread still asks.
            is_canceled.set()
            with suppress(FencepostError): await to_the_end(free)
            raise
        if not isinstance(taken, Lease) or not taken.is_over(): return taken
        raise await to_the_end(lambda: self.blocking._unbegun(path, key, token))  # The loop was blocked.

    async def renew(self, lease: Lease, ttl_s: float | None = None) -> None:
        try: await in_thread(lambda: self.blocking._lengthen(lease, ttl_s))
        except Lost as error: lease.lost.set() if error.status in (404, 409) else None; raise  # Not in a thread.

    async def release(self, lease: Lease) -> None:
        until = now() + self.blocking._end(lease)  # Here, for the same reason.
        await to_the_end(lambda: self.blocking._each("DELETE", lease.key, lease.token, until, {}, "/lock"))

    @asynccontextmanager
    async def hold(self, key: Keys, ttl_s: float = 30, wait_s: float = 0, owner: str = "",
                   slots: int | str = 1) -> AsyncIterator[AsyncLease]:
        """Renews in a task. If the lease is lost, `lost` is set, `check` raises `Lost`, and so does the end."""
        lease = await self.acquire(key, ttl_s, wait_s, owner, slots)
        keeping = self._keeps(lease, ttl_s)
        unsaid: Any = FencepostError  # If the work fails, what it raises says more than what the release does.
        try:
            yield lease
            lease.check()
            unsaid = Unknown
        finally:
            try:
                with suppress(unsaid): await self.release(lease)  # From its beginning on, `lost` is set.
            finally: keeping()

    def _keeps(self, lease: AsyncLease, ttl_s: float) -> Callable[[], Any]:
        """Returns what ends it. A shutdown cancels all tasks: another then renews on while the holder works on."""
        holder, keeping = asyncio.current_task(), list[asyncio.Task[None]]()
        async def keep() -> None:
            while not lease.is_over():
                await asyncio.sleep(min(ttl_s / 3, lease.ends_at - now()))
                with suppress(Exception):  # Also if there is no thread left to ask with.
                    lease.check(); await self.renew(lease, ttl_s)
        def ended(task: asyncio.Task[None]) -> None:
            if task.cancelled() and not lease.lost.is_set() and holder and not holder.done(): begin()
            else: lease.lost.set()
        def begin() -> None:
            keeping[:] = [asyncio.create_task(keep())]
            keeping[0].add_done_callback(ended)
        begin()
        return lambda: keeping[0].cancel()

    async def once(self, key: str, work: Callable[[AsyncPlace], Awaitable[Result | bytes | str]], ttl_s: float = 30,
                   wait_s: float = 0, keep_s: float = 86400, owner: str = "", fingerprint: str = "",
                   takeover: bool = True) -> Result:
        """If the task is canceled while it works, the place is given up. A result that is there is stored."""
        token = uuid.uuid4().hex
        begun = await self._take("/once", key, token, lambda: self.blocking._begin(
            key, token, ttl_s, wait_s, keep_s, owner, fingerprint, takeover))
        if isinstance(begun, Result): return begun
        place, result = AsyncPlace(begun), None
        keeping = self._keeps(place, ttl_s)
        try:
            made = result = result_of(await work(place), place.max_result_bytes)
            return await to_the_end(lambda: self.blocking._store(begun, made, ttl_s))
        except BaseException as error:
            place.lost.set()
            is_clean = place.is_clean_after(error)
            if not result or isinstance(error, Refused):  # Such as a result that is too large.
                with suppress(Exception):
                    await to_the_end(lambda: self.blocking._leave("/once", key, token, is_clean))
            raise
        finally:
            place.lost.set()
            keeping()
