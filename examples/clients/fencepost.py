"""A Fencepost client for Python 3.10 and later. It needs no other package: copy this file into your project.
Its calls block. In `async` code, copy `fencepost_async.py` as well, and use that."""
import copy, http.client, json, os, re, ssl, threading, time, uuid
from concurrent.futures import Future, TimeoutError as TooLate
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Callable, Iterable, Iterator
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import HTTPHandler, HTTPSHandler, Request, build_opener

class FencepostError(Exception):
    """`problem` is the gateway's answer, if there was one. `holder` has `owner`, `expires_at` and `expires_in_ms`."""
    def __init__(self, text: str, problem: dict[str, Any] | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(text)
        self.problem, self.retry_after_s = problem or {}, retry_after_s
        self.status, self.type, self.detail = (self.problem.get(name) for name in ("status", "type", "detail"))
        self.holder: dict[str, Any] | None = self.problem.get("holder")
class Busy(FencepostError): """Someone else holds the lock, or is next in the wait queue."""
class Lost(FencepostError): """The lease is over. Someone else may hold the lock now."""
class Refused(FencepostError): """A parameter, the address, the certificate, the API key or its rights are wrong."""
class Unavailable(FencepostError): """No gateway can do it now. Certainly nothing happened."""
class Unknown(FencepostError): """No answer in time. It may have happened, or not."""
class Mismatch(Refused): """The record belongs to a request with another fingerprint."""
class Abandoned(FencepostError): """Someone may have done the work, and stored no result. You said `takeover=False`."""
class Superseded(Lost):
    """Another worker has taken over, with this `fencing_token`. Your result is not stored."""
    @property
    def fencing_token(self) -> int: return int(self.problem.get("fencing_token", 0))
class NothingDone(Exception): """The work of `once` raises it if it certainly changed nothing: as if it never began."""

WAIT_S = 5.0  # The longest wait of one request. A dead gateway is noticed before the ticket in the wait queue expires.
WAIT_OF_SEVERAL_S = 20.0  # The same for several locks: between two requests it has none of them, and others go first.
ADDRESS = re.compile(r"https?://([^\s/?#:@\[\]]+|\[[^\s/\]]*\])(:\d{1,5})?(/[^\s?#]*)?")
NOTHING_HAPPENED = ("store-unavailable", "not-replicated", "shutting-down", "store-nearly-full")
KINDS = {"once-abandoned": Abandoned, "superseded": Superseded, "fingerprint-mismatch": Mismatch}
def kind_of(status: int, problem: str) -> type[FencepostError]:
    if not problem: return Unknown if status > 0 else Unavailable  # What a proxy answers has no such type.
    name = problem.removeprefix("/problems/")
    if name in KINDS or status == 423: return KINDS.get(name, Busy)
    if status in (404, 409) and name != "not-found": return Lost
    if status in (408, 429) or name in NOTHING_HAPPENED: return Unavailable
    return Unknown if status >= 500 and status != 501 else Refused
def is_done(method: str, path: str, key: "Keys", token: str, status: int, body: Any, said: Any) -> bool:
    """Whether it is the whole answer to this very request. A proxy may answer 200 with anything, and 204."""
    if method == "DELETE": return status == 204 and "X-Request-Id" in said  # Each answer of a gateway has that.
    is_begin = (method, path) == ("PUT", "/once")  # There, 200 is somebody's result.
    def has(it: Any, name: str) -> bool: return isinstance(it, dict) and type(it.get(name)) is int and it[name] > 0
    if not has(body, "kept_ms" if method == "POST" else "ttl_ms"): return False
    locks = body["locks"] if isinstance(body.get("locks"), list) else [body]  # Each of several has its own number.
    told = [lock.get("key") if has(lock, "fencing_token") else None for lock in locks]
    is_ours = all(one in told for one in each(key)) and (method == "POST" or body.get("token") == token)
    is_grant = status == 201 and (not is_begin or type(body.get("earlier")) is int) or status == 200 and not is_begin
    return is_ours and is_grant and None not in told
Keys = str | tuple[str, ...] | list[str]  # One, or several at once.
def each(key: Keys) -> tuple[str, ...]:  # A copy, since the caller may change its list. Of an enum, it has the value.
    keys = key if isinstance(key, (tuple, list)) else [key]
    is_text = all(isinstance(one, str) and not re.search("[\\ud800-\\udfff]", one) for one in keys)  # No half emoji.
    if keys and is_text: return tuple(map(str.__str__, keys))
    raise Refused(f"{key!r} is no key: give a str, or a tuple or a list of them")
def own(key: Keys) -> Keys: return each(key)[0] if isinstance(key, str) else each(key)
def ms(name: str, time_s: Any) -> str:  # As a gateway reads it, which knows what is too long.
    if hasattr(time_s, "__float__") and time_s > -1e9: return f"{round(min(float(time_s), 1e9) * 1000)}ms"
    raise Refused(f"{name} is {time_s!r}, which is no number of seconds")
def now() -> float:  # This clock goes on while the machine sleeps. Windows has only the last one: there it does, too.
    clock: int = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", 0))
    return time.clock_gettime(clock) if clock else time.monotonic()

@dataclass
class Result:
    """Of a piece of work. `was_replayed`: another run has done it, whose `fencing_token` this is."""
    body: bytes
    status: int | None = None
    content_type: str | None = None
    was_replayed: bool = False
    fencing_token: int = 0
def status_of(told: Any) -> int | None:
    with suppress(ArithmeticError, TypeError, ValueError): return int(told) if 0 <= int(told) <= 999 else None
    return None
def result_of(made: "Result | bytes | str", most_bytes: int) -> Result:
    if isinstance(made, str): made = Result(made.encode(), content_type="text/plain; charset=utf-8")
    result = made if isinstance(made, Result) else Result(made)
    if not isinstance(result.body, (bytes, bytearray, memoryview)):  # Such as None, or a list.
        raise TypeError(f"{type(result.body).__name__} is no result: return bytes, str or Result")
    kind = result.content_type.strip() if isinstance(result.content_type, str) else ""
    # The work is done, so its result must not fail for what no request can carry: that counts as none.
    result = replace(result, body=bytes(result.body), status=status_of(result.status),
                     content_type=kind if re.fullmatch("[ -~]{1,127}", kind) else None)
    if 0 < most_bytes < len(result.body): raise Refused(f"{len(result.body)} bytes are longer than {most_bytes}")
    return result if result.body or result.status is not None else replace(result, status=0)  # That means: empty.
def replayed(token: str, status: int, body: bytes, said: Any) -> Result | None:
    number, of_work = said.get("Fencing-Token") or "", said.get("Once-Status") or ""
    is_whole = said.get("Once-Bytes") == str(len(body)) and said.get("Lease-Token") == token  # And of this request.
    if status != 200 or said.get("Once") != "replayed" or not is_whole or not number.isdecimal(): return None
    return Result(body, int(of_work) if of_work.isdecimal() else None, said.get("Once-Content-Type"), True, int(number))

class Lease:
    """Show `fencing_token` to what the lock protects. `ends_at` is by `now`, and never too late."""
    path, is_left = "/lock", False
    def __init__(self, key: Keys, token: str, sent: float, grant: Any, *begun: dict[str, str]) -> None:
        self.key, self.token, self.ends_at, self.lost = key, token, sent + grant["ttl_ms"] / 1000, threading.Event()
        self.ttl = begun[0]["ttl"] if begun else "30s"
        self.fencing_tokens: dict[str, int] = {it["key"]: it["fencing_token"] for it in grant.get("locks") or [grant]}
        self.slot: int | None = grant.get("slot")  # If several may hold the lock: a number from 1 on that no other has.
    @property
    def fencing_token(self) -> int:
        if len(self.fencing_tokens) > 1: raise ValueError("each of several locks has its own: use fencing_tokens")
        return next(iter(self.fencing_tokens.values()))
    def check(self) -> None:
        """Raises `Lost` if someone else may hold the lock."""
        if self.is_over(): raise Lost(f"{self.key}: the lease is over")
    def is_over(self) -> bool: return self.is_left or self.lost.is_set() or now() >= self.ends_at
class Place(Lease):
    """Of a worker. If `earlier` is not 0, so many workers before may have done the work, or half of it: look first."""
    path = "/once"
    def __init__(self, key: str, token: str, sent: float, grant: Any, *begun: dict[str, str]) -> None:
        super().__init__(key, token, sent, grant, *begun)
        (self.query, self.headers), self.earlier = begun, int(grant["earlier"])  # With those it was begun.
        self.max_result_bytes: int = grant.get("max_result_bytes", 0)
    def is_clean_after(self, error: BaseException) -> bool:  # Of one place: work around it may have done something.
        return isinstance(error, NothingDone) and vars(error).setdefault("told_by", self.lost) is self.lost

class Whole(http.client.HTTPResponse):
    def begin(self) -> None:
        stream: Any = self.fp; read = stream.readline; lines: Any = []
        stream.readline = lambda *most: lines.append(read(*most)) or lines[-1]
        super().begin()
        if not lines[-1]: raise http.client.IncompleteRead(b"")  # Its last header may be half of what was sent.
class InTime(HTTPHandler, HTTPSHandler):
    """Sends nothing once there is a connection, if the one who asked has taken `turn`, or the lease is released."""
    turn: threading.Lock; lease: Lease | None
    def do_open(self, http_class: Any, req: Request, **settings: Any) -> http.client.HTTPResponse:
        def make(host: str, **more: Any) -> Any:
            connection = http_class(host, **more)
            connection.response_class, connect = Whole, connection.connect
            def connect_in_time() -> None:
                connect(); is_over = self.lease and self.lease.lost.is_set()
                if is_over or not self.turn.acquire(blocking=False): raise TimeoutError("no answer in time")
            connection.connect = connect_in_time
            return connection
        return super().do_open(make, req, **settings)

class Fencepost:
    """`urls` is one gateway, or several that share a store: a list, or a text with commas. Settings that you leave out
    come from FENCEPOST_URL, FENCEPOST_API_KEY or FENCEPOST_API_KEY_FILE, and SSL_CERT_FILE."""
    def __init__(self, urls: str | Iterable[str] | None = None, *, retry_for_s: float = 10, try_for_s: float = 3,
                 api_key: str = "", ca_file: str | None = None, store_for_s: float = 0) -> None:
        if urls is None: urls = os.environ.get("FENCEPOST_URL", "http://127.0.0.1:8080")
        self.urls = [url.strip().rstrip("/") for url in (urls.split(",") if isinstance(urls, str) else urls)]
        told = [ADDRESS.fullmatch(url) for url in self.urls]  # It may hold a password, which the error must not show.
        if not told or not all(one and int((one[2] or ":0")[1:]) < 65536 for one in told):
            raise Refused("FENCEPOST_URL, or what you give, is not http[s]://HOST:PORT, without a user and a password")
        ca_file = ca_file or os.environ.get("SSL_CERT_FILE") or None  # OpenSSL passes over a file that is not there.
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            if any(url[:6] == "https:" for url in self.urls): self.tls = ssl.create_default_context(cafile=ca_file)
        except OSError as error: raise Refused(f"the CA file {ca_file}: {error.strerror}") from None
        ms("retry_for_s", retry_for_s); ms("try_for_s", try_for_s); ms("store_for_s", store_for_s)
        self.retry_for_s, self.try_for_s, self.store_for_s = retry_for_s, try_for_s, store_for_s
        api_key = api_key or os.environ.get("FENCEPOST_API_KEY", "")
        if not api_key and (file := os.environ.get("FENCEPOST_API_KEY_FILE")):
            try:
                with open(file, errors="replace") as text: api_key = text.read().strip()
            except OSError as error: raise Refused(f"the API key file {file}: {error.strerror}") from None
            if not api_key: raise Refused(f"the API key file {file} is empty")
        if not re.fullmatch("[!-~]*", api_key): raise Refused("the API key has characters that no key has")
        self.headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def acquire(self, key: Keys, ttl_s: float = 30, wait_s: float = 0, owner: str = "", token: str = "",
                slots: int | str = 1) -> Lease:
        """Raises `Busy` if the lock is not free within `wait_s`, and `Unavailable` at once if all gateways are away.
        `slots`, a number or "any", is how many may hold it at once. Of a tuple of keys it takes all locks, or none."""
        query = ({"owner": owner} if owner else {}) | ({} if slots == 1 else {"slots": str(slots)})
        lease: Lease = self._take(Lease, key, token or uuid.uuid4().hex, ttl_s, wait_s, query); return lease

    def _take(self, made: Callable[..., Lease], key: Keys, token: str, ttl_s: float, wait_s: float,
              query: dict[str, str], headers: dict[str, str] = {}, path: str = "/lock") -> Any:
        ms("wait_s", wait_s); wait_until = now() + wait_s if wait_s else 0
        key, query = own(key), {"ttl": ms("ttl_s", ttl_s)} | query
        def put(for_s: float, is_new: bool = False) -> tuple[float, Any]:
            later = wait_until if is_new or path == "/lock" else 0
            return self.call("PUT", key, token, max(now(), later) + for_s, query, later, is_new, path, headers)
        try:
            sent, grant = put(self.retry_for_s, True)
            # If it waited, the lease began later. The same request says when it ends, or waits on if it is over.
            if now() - sent > ttl_s / 3 and not isinstance(grant, Result): sent, grant = put(self.try_for_s)
            while not isinstance(grant, Result):
                if not (got := made(key, token, sent, grant, query, headers)).is_over(): return got
                if now() >= wait_until: raise self._unbegun(path, key, token)
                sent, grant = put(self.try_for_s)
            return grant
        except (Lost, Refused, Unavailable): raise
        except Abandoned as error: raise self._unbegun(path, key, token) if error.problem.get("yours") else error
        except BaseException as error:  # It leaves the wait queue, and releases a grant that it was not told of.
            if wait_s or not isinstance(error, Busy) or not isinstance(key, str):
                with suppress(Exception): self._leave(path, key, token)
            raise
    def _unbegun(self, path: str, key: Keys, token: str) -> Unavailable:  # Gives back what was ours.
        with suppress(Exception): self._leave(path, key, token)
        return Unavailable(f"{key}: the lease was over before the work began")
    def _leave(self, path: str, key: Keys, token: str, is_clean: bool = True) -> None:
        query = {"clean": "true"} if path == "/once" and is_clean else {}
        self._each("DELETE", key, token, now() + self.try_for_s, query, path)
    def _each(self, method: str, keys: Keys, token: str, until: float, query: dict[str, str], path: str,
              lease: Lease | None = None) -> list[tuple[float, Any]]:
        said, failed = [], []
        for key in each(keys):  # One that fails keeps none of the others from it, and hides no other that is lost.
            try: said.append(self.call(method, key, token, until, query, path=path, lease=lease))
            except Exception as error:
                if method == "PATCH" and isinstance(error, Lost): raise
                failed.append(error)
        if failed: raise failed[0]
        return said

    def renew(self, lease: Lease, ttl_s: float | None = None) -> None:  # Else for as long as it was taken for.
        try: self._lengthen(lease, ttl_s)
        except Lost as error: lease.lost.set() if error.status in (404, 409) else None; raise  # Else it was late.
    def _lengthen(self, lease: Lease, ttl_s: float | None) -> None:
        query = {"ttl": lease.ttl if ttl_s is None else ms("ttl_s", ttl_s)}
        got = self._each("PATCH", lease.key, lease.token, lease.ends_at, query, lease.path, lease)
        lease.ends_at = max(lease.ends_at, min(sent + grant["ttl_ms"] / 1000 for sent, grant in got))

    def release(self, lease: Lease) -> None:
        self._each("DELETE", lease.key, lease.token, now() + self._end(lease), {}, "/lock")
    def _end(self, lease: Lease) -> float:
        """From here on `check` raises, before another can have the lock. Returns for how long to try to release it."""
        for_s = self.try_for_s if lease.is_over() else self.retry_for_s  # What is free by itself needs one try.
        lease.lost.set(); return for_s

    @contextmanager
    def hold(self, key: Keys, ttl_s: float = 30, wait_s: float = 0, owner: str = "",
             slots: int | str = 1) -> Iterator[Lease]:
        """Renews in the background. If the lease is lost, `lost` is set, `check` raises `Lost`, and so does the end."""
        lease = self.acquire(key, ttl_s, wait_s, owner, slots=slots)
        unsaid: Any = Exception  # If the work fails, what it raises says more than what the release does.
        try: self._renews(lease, ttl_s); yield lease; lease.check(); unsaid = Unknown
        finally:
            try:
                with suppress(unsaid): self.release(lease)
            finally: lease.is_left = True  # Also if a signal's handler raises in there: no renewal goes on.
    def _renews(self, lease: Lease, ttl_s: float) -> None:  # In a thread, until the lease is over.
        def keep() -> None:
            while not lease.lost.wait(min(ttl_s / 3, lease.ends_at - now())) and not lease.is_over():
                with suppress(Exception): self.renew(lease, ttl_s)  # Also if there is no thread left to ask with.
            lease.lost.set()
        threading.Thread(target=keep, daemon=True).start()

    def once(self, key: str, work: "Callable[[Place], Result | bytes | str]", ttl_s: float = 30, wait_s: float = 0,
             keep_s: float = 86400, owner: str = "", fingerprint: str = "", takeover: bool = True) -> Result:
        """Returns the stored result if there is one. Otherwise it works, and stores what `work` returns. Raises `Busy`
        if another is still at work after `wait_s`. If `work` raises, the place is given up, and the next worker is told
        that something may have been done, except after `NothingDone`."""
        token, result, is_clean = uuid.uuid4().hex, None, True
        place = self._begin(key, token, ttl_s, wait_s, keep_s, owner, fingerprint, takeover)
        if isinstance(place, Result): return place
        try:
            self._renews(place, ttl_s); is_clean = False; result = result_of(work(place), place.max_result_bytes)
            return self._store(place, result, ttl_s)
        except BaseException as error:
            self._end(place)
            if not result or isinstance(error, Refused):  # Such as a result that is too large.
                with suppress(Exception): self._leave("/once", key, token, is_clean or place.is_clean_after(error))
            raise
        finally: place.is_left = True; place.lost.set()

    def _begin(self, key: str, token: str, ttl_s: float, wait_s: float, keep_s: float, owner: str, fingerprint: str,
               takeover: bool) -> Place | Result:
        if not isinstance(takeover, bool): raise Refused(f"takeover is {takeover!r}: say True or False")
        query = {"keep": ms("keep_s", keep_s)} | ({"owner": owner} if owner else {})
        query |= {} if takeover else {"takeover": "false"}
        headers = {"Once-Fingerprint": fingerprint} if fingerprint else {}
        begun: Place | Result = self._take(Place, key, token, ttl_s, wait_s, query, headers, "/once"); return begun

    def _store(self, place: Place, result: Result, ttl_s: float) -> Result:  # It needs no lease.
        key, token, until = place.key, place.token, now() + (self.store_for_s or max(ttl_s, self.retry_for_s))
        query = {} if result.status is None else {"status": str(result.status)}
        headers = {"Content-Type": result.content_type} if result.content_type else {}
        def post() -> Result:
            _, stored = self.call("POST", key, token, until, query, path="/once", headers=headers, body=result.body)
            return replace(result, was_replayed=False, fencing_token=stored["fencing_token"])
        try: return post()
        except Lost as error:
            if error.type != "/problems/not-begun": raise
        # The record was broken or lost. The work is done: what was said about taking over does not matter now.
        begin = {name: said for name, said in place.query.items() if name != "takeover"}
        try:
            _, again = self.call("PUT", key, token, until, begin, path="/once", headers=place.headers)
            if not isinstance(again, Result): return post()
            number = again.fencing_token
        except Busy as busy: number = busy.problem.get("worker", {}).get("fencing_token", 0)
        raise Superseded(f"{key}: another worker has taken over", {"fencing_token": number})

    def call(self, method: str, key: Keys, token: str, until: float, query: dict[str, str] = {}, wait_until: float = 0,
             is_new: bool = False, path: str = "/lock", headers: dict[str, str] = {}, body: bytes | None = None,
             lease: Lease | None = None) -> tuple[float, Any]:
        """The same request with the same token until it is answered. A gateway that fails is asked last from then on.
        Returns when it asked, and what was granted. Of a `lease` that was released, nothing is sent any more."""
        failed, is_doubtful, is_reached, is_wrong, doubtful = 0, not is_new, not is_new, True, list[str]()
        longest_s = WAIT_S if len(each(key)) == 1 else WAIT_OF_SEVERAL_S
        # One gateway that hangs must not use up a lease that another one can renew.
        try_for_s = min(self.try_for_s, (until - now()) / 2) if method == "PATCH" else self.try_for_s
        while True:
            if lease and lease.lost.is_set(): raise Lost(f"{key}: the lease is over")
            url, sent = self.urls[0], now(); wait_s = min(longest_s, max(0.0, wait_until - sent))
            asked = {"key": each(key)} | query | ({"wait": f"{round(wait_s * 1000)}ms"} if wait_until else {})
            address = f"{url}{path}?{urlencode(asked, doseq=True, errors='replace')}"  # Of an owner.
            request = Request(address, body, self.headers | {"Lease-Token": token} | headers, method=method)
            status, data, said = self._send(request, max(0.1, min(until - sent, try_for_s + wait_s, 1e6)), lease)
            if path == "/once" and method == "PUT" and (done := replayed(token, status, data, said)): return sent, done
            answer: Any = None
            with suppress(ValueError, RecursionError): answer = json.loads(data or "{}")
            if is_done(method, path, key, token, status, answer, said): return sent, answer
            text, wait = data.decode(errors="replace"), said.get("Retry-After") or ""
            after = float(wait) if wait.isdecimal() else None
            problem = answer if isinstance(answer, dict) and str(answer.get("type")).startswith("/problems/") else {}
            if status == 400 and not problem and url[:5] == "http:" and re.search("(?i)tls|https", text): status = -1
            kind = kind_of(status, problem.get("type", ""))
            # What is told of a 2xx must not be another's grant, with its lease token.
            why = f"{method} {key} at {url}: {problem.get('detail') or status // 100 != 2 and text[:300] or status}"
            is_busy = kind in (Busy, Abandoned)
            is_own = bool(problem.get("yours")); is_over = is_own or now() > wait_until - 0.1  # No wait for itself.
            is_too_long = problem.get("parameter") == "wait" and wait_s > 0.1  # For the `--max-wait` of the gateway.
            is_final = is_over if is_busy else issubclass(kind, (Lost, Refused)) and not is_too_long
            if is_final and doubtful and method == "PUT":  # Those may have granted it, or a late copy still takes it.
                others = copy.copy(self)
                if not is_busy: others.urls = doubtful  # Else this one answers, and tells the store that they share.
                with suppress(FencepostError): others._leave(path, key, token, is_new or is_own)
            if is_final: raise kind(why, problem, after)
            is_doubtful |= kind is Unknown; is_reached |= status > 0; is_wrong &= status < 0
            if is_too_long: longest_s = wait_s / 2; continue
            if is_busy: time.sleep(0.0 if "position" in problem else 0.2); continue
            failed += 1; is_round = failed % len(self.urls) == 0
            if kind is Unknown and url not in doubtful: doubtful.append(url)
            self.urls = sorted(self.urls, key=url.__eq__)  # Read once: another thread may turn it meanwhile.
            if now() >= until or is_round and (is_wrong or not is_reached):
                kind = Lost if method == "PATCH" and now() >= until else Unknown if is_doubtful else Unavailable
                raise (Refused if is_wrong else kind)(why, problem, after)
            left = max(0.0, until - now())
            if is_round: time.sleep(min(after or 0.2, 0.2 + left / 4, left))  # It may be well before it said.

    def _send(self, request: Request, timeout_s: float, lease: Lease | None) -> tuple[int, bytes, Any]:
        """The status, the body, and the headers. Status 0: nothing was sent. -1: and the settings are wrong. 1: the
        answer was lost. A thread asks: a socket's timeout is for each piece, and names take long to look up."""
        handler, said = InTime(context=self.tls), Future[tuple[int, bytes, Any]]()
        handler.turn, handler.lease = threading.Lock(), lease
        def ask() -> None:
            try: said.set_result(self._ask(handler, request, timeout_s))
            except BaseException as error: said.set_exception(error)
        try: threading.Thread(target=ask, daemon=True).start()
        except RuntimeError as why:
            if "new thread" not in str(why): raise why.__context__ or why  # It is what a signal's handler has raised.
            ask()  # There is no thread left, and the result of work that is done must be stored.
        try: return said.result(timeout_s)
        except TooLate: return 0 if handler.turn.acquire(blocking=False) else 1, b"no answer in time", {}

    def _ask(self, handler: InTime, request: Request, timeout_s: float) -> tuple[int, bytes, Any]:
        try:
            try: answer = build_opener(handler).open(request, timeout=timeout_s)
            except HTTPError as error: answer = error
            with answer: return answer.status, answer.read(), answer.headers
        except URLError as error:
            why = error.reason  # Of TLS, a connection that ends is an outage, and all else is a wrong setting.
            is_wrong = isinstance(why, ssl.SSLError) and not isinstance(why, (ssl.SSLEOFError, ssl.SSLZeroReturnError))
            return -1 if is_wrong else 0, str(why).encode(), {}
        except (OSError, http.client.HTTPException) as error: return 1, repr(error).encode(), {}
        except (ValueError, OverflowError) as error:  # Before there is a connection: of an address, or of a header.
            return 1 if handler.turn.locked() else -1, repr(error).encode(), {}
