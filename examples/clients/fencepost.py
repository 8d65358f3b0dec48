"""A Fencepost client for back ends: the standard library of Python 3.10 is enough. Copy it into your project."""
import http.client, json, os, sys, threading, time, uuid
from contextlib import contextmanager, suppress
from typing import Any, Iterator
from urllib.parse import urlencode
from urllib.request import HTTPError, Request, urlopen

class Busy(Exception): """Somebody else holds the lock."""
class Lost(Exception): """The lease is over: somebody else may hold the lock by now."""
class Unknown(Exception): """No answer until the deadline: it may have happened, or not."""
class Refused(Exception): """The gateway does not take such a request."""
ERRORS: dict[int, type[Exception]] = {423: Busy, 404: Lost, 409: Lost}
def now() -> float: return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))  # Also in sleep.

class Lease:
    def __init__(self, key: str, token: str, sent: float, grant: Any) -> None:
        self.key, self.token, self.lost = key, token, threading.Event()
        self.fencing_token: int = grant["fencing_token"]  # Show it to what the lock protects.
        self.ends_at: float = sent + grant["ttl_ms"] / 1000  # By `now`, and never too late.
    def check(self) -> None:
        if self.lost.is_set() or now() >= self.ends_at: raise Lost(self.key)

class Fencepost:
    def __init__(self, url: str, retry_for_s: float = 10, try_for_s: float = 3, api_key: str = "") -> None:
        self.url, self.retry_for_s, self.try_for_s = url, retry_for_s, try_for_s
        self.headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    def acquire(self, key: str, ttl_s: float = 30, wait_s: float = 0) -> Lease:  # `wait_s` is up to 60.
        token, until = uuid.uuid4().hex, now() + wait_s + self.retry_for_s
        def put() -> Lease: return Lease(key, token, *self._call("PUT", key, token, until, ttl=ttl_s, wait=wait_s))
        try:
            lease = put()  # If it waited, `ends_at` is far too early: the same request again says when it ends.
            return lease if lease.ends_at - now() > ttl_s * 2 / 3 else put()
        except BaseException as error:  # Out of the line; and what was granted without our knowing is freed.
            if wait_s or not isinstance(error, Busy):
                with suppress(Exception): self._call("DELETE", key, token, now() + self.try_for_s)
            raise

    def renew(self, lease: Lease, ttl_s: float = 30) -> None:
        sent, grant = self._call("PATCH", lease.key, lease.token, lease.ends_at, ttl=ttl_s)
        lease.ends_at = sent + grant["ttl_ms"] / 1000
    def release(self, lease: Lease) -> None: self._call("DELETE", lease.key, lease.token, now() + self.retry_for_s)

    @contextmanager
    def hold(self, key: str, ttl_s: float = 30, wait_s: float = 0) -> Iterator[Lease]:
        """Renews in the background. When the lease is lost `lost` is set, `check` raises, and so does the end."""
        lease, done, unsaid = self.acquire(key, ttl_s, wait_s), threading.Event(), Exception
        def keep() -> None:
            while not done.wait(min(ttl_s / 3, lease.ends_at - now())) and not lease.lost.is_set():
                try: self.renew(lease, ttl_s)
                except Exception as error:
                    if isinstance(error, Lost) or now() >= lease.ends_at: lease.lost.set()
        threading.Thread(target=keep, daemon=True).start()
        try:
            yield lease
            lease.check()
            unsaid = Unknown  # When the work has failed, what it raises says more than what the release does.
        finally:
            done.set()
            with suppress(unsaid): self.release(lease)

    def _call(self, method: str, key: str, token: str, until: float, **spans_s: float) -> tuple[float, Any]:
        query = {"key": key} | {name: f"{round(span * 1000)}ms" for name, span in spans_s.items()}
        request = Request(f"{self.url}/lock?{urlencode(query)}", method=method, headers=self.headers | {"Lease-Token": token})
        while True:  # The same request with the same token, until the gateway answers or the time is over.
            sent = now()
            try:
                timeout = max(0.1, min(until - sent, self.try_for_s + spans_s.get("wait", 0)))
                with urlopen(request, timeout=timeout) as answer: return sent, json.loads(answer.read() or "null")
            except (OSError, http.client.HTTPException, ValueError) as error:
                why, kind = f"{method} {key}: {error}", ""
                if isinstance(error, HTTPError) and error.code < 500:
                    with suppress(Exception): kind = str(json.loads(error.read())["type"])  # A proxy's has none.
                    if kind.startswith("/problems/"): raise ERRORS.get(error.code, Refused)(why) from None
                if now() >= until: raise Unknown(why) from error
            time.sleep(0.2)

if __name__ == "__main__":  # A click on "pay". Nothing releases it: a second click within its ttl finds it held.
    try: lease = Fencepost(os.environ["FENCEPOST_URL"]).acquire(f"pay:{sys.argv[1]}", ttl_s=10)
    except Busy: print("is being paid already")
    else: print("charged", lease.fencing_token)
