"""Does what a test says, line by line, with the client in examples/clients, and says what came of it."""
import os
import sys

from fencepost import Busy, Fencepost, Lease, Lost, Unknown


class Failed(Exception):
    """What work may raise."""


def said() -> list[str]:
    return sys.stdin.readline().split()


def say(answer: object) -> None:
    print(answer, flush=True)


def hold(fencepost: Fencepost, key: str, ttl_s: str, wait_s: str) -> None:
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


def do(fencepost: Fencepost, lease: Lease | None, words: list[str]) -> Lease | None:
    match words:
        case ["acquire", key, ttl_s, wait_s]:
            lease = fencepost.acquire(key, float(ttl_s), float(wait_s))
            say(f"granted {lease.fencing_token}")
        case ["renew", ttl_s] if lease:
            fencepost.renew(lease, float(ttl_s))
            say("renewed")
        case ["release"] if lease:
            fencepost.release(lease)
            say("released")
        case ["hold", key, ttl_s, wait_s]:
            hold(fencepost, key, ttl_s, wait_s)
        case _:
            raise ValueError(words)
    return lease


def main() -> None:
    fencepost = Fencepost(os.environ["FENCEPOST_URL"], float(os.environ["RETRY_FOR_S"]), try_for_s=1)
    lease: Lease | None = None
    while words := said():
        try:
            lease = do(fencepost, lease, words)
        except (Busy, Lost, Unknown, Failed) as error:
            say(type(error).__name__.lower())


main()
