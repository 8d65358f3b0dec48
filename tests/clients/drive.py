"""Does what a test says, line by line, with the client in examples/clients, and says what came of it."""
import json
import os
import sys
from http import HTTPStatus
from typing import cast

from fencepost import Fencepost, FencepostError, Lease, NothingDone, Place, Refused, Result, Superseded


class Failed(Exception):
    """What work may raise."""


def said() -> list[str]:
    return sys.stdin.readline().split()


def say(answer: object) -> None:
    print(answer, flush=True)


def describe(error: Exception | None) -> str:
    assert isinstance(error, FencepostError)
    retry_after_s = error.retry_after_s
    return json.dumps([error.status, error.type, error.detail, error.holder, retry_after_s, str(error)])


def hold(fencepost: Fencepost, key: str, ttl_s: str, wait_s: str) -> Lease:
    with fencepost.hold(key, float(ttl_s), float(wait_s)) as lease:
        say(f"granted {lease.fencing_token}")
        while (word := said()[0]) != "leave":
            if word == "fail":
                raise Failed
            if word == "lost":
                lease.lost.wait()
            lease.check()
            say("held")
    say("released")
    return lease


ENDS: dict[str, type[Exception]] = {"fail": Failed, "nothing": NothingDone}


def does_nothing(_: Place) -> str:
    raise NothingDone


def take_over(words: list[str]) -> bool:
    return "keep-off" not in words


def made(word: str, place: Place) -> Result | str:
    """What work returns: much, what no request can carry, what is like a status, no result, nothing, or a text."""
    if word == "much":
        return "x" * (place.max_result_bytes + 1)
    if word == "unsent":
        return Result(word.encode(), 1000, "text\n/plain")
    if word == "trimmed":
        return Result(word.encode(), HTTPStatus.CREATED, "application/json\n")
    if word == "five":
        return cast(str, 5)
    return Result(b"", 204) if word == "empty" else Result(word.encode(), 201, "application/json")


def shown(result: Result) -> str:
    how = "replayed" if result.was_replayed else "made"
    return f"{how} {result.body.decode()} {result.status} {result.content_type} {result.fencing_token}"


def once(fencepost: Fencepost, words: list[str]) -> None:
    _, key, ttl_s, wait_s, fingerprint = words[:5]

    def work(place: Place) -> Result | str:
        say(f"works {place.earlier} {place.fencing_token}")
        while True:
            word = said()[0]
            if word == "lost":
                place.lost.wait()
                say("lost")
            elif word == "inside":
                fencepost.once(f"{key}/inside", does_nothing)
            elif word in ENDS:
                raise ENDS[word]
            else:
                return made(word, place)

    result = fencepost.once(
        key, work, float(ttl_s), float(wait_s), 3600, "drive", fingerprint, takeover=take_over(words)
    )
    say(shown(result))


def do(fencepost: Fencepost, lease: Lease | None, words: list[str]) -> Lease | None:
    match words:
        case ["acquire", key, ttl_s, wait_s]:
            lease = fencepost.acquire(key, float(ttl_s), float(wait_s))
            say(f"granted {lease.fencing_token}")
        case ["share", key, ttl_s, slots]:
            lease = fencepost.acquire(key, float(ttl_s), slots=slots if slots == "any" else int(slots))
            say(f"granted {lease.fencing_token} {lease.slot}")
        case ["both", key, other, ttl_s, wait_s]:
            lease = fencepost.acquire((key, other), float(ttl_s), float(wait_s))
            say(f"granted {lease.fencing_tokens[key]} {lease.fencing_tokens[other]}")
        case ["renew", *ttl_s] if lease:
            fencepost.renew(lease, *map(float, ttl_s))
            say("renewed")
        case ["release"] if lease:
            fencepost.release(lease)
            say("released")
        case ["hold", key, ttl_s, wait_s]:
            lease = hold(fencepost, key, ttl_s, wait_s)
        case ["check"] if lease:
            lease.check()
            say("held")
        case ["once", *_]:
            once(fencepost, words)
        case _:
            raise ValueError(words)
    return lease


def main() -> None:
    fencepost = Fencepost(retry_for_s=float(os.environ["RETRY_FOR_S"]), try_for_s=float(os.environ["TRY_FOR_S"]))
    lease: Lease | None = None
    error: Exception | None = None
    while words := said():
        try:
            if words == ["why"]:
                say(describe(error))
            elif words == ["number"] and isinstance(error, Superseded):
                say(error.fencing_token)
            else:
                lease = do(fencepost, lease, words)
        except (FencepostError, Failed, NothingDone, TypeError) as raised:
            error = raised
            say(type(error).__name__.lower())


if __name__ == "__main__":
    try:
        main()
    except Refused as refused:  # The settings, when it was made.
        say("refused")
        say(refused)
