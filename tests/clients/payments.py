"""What stands for a database and a payment provider, where a test says when the provider answers.

Like most providers, it keeps its first answer to an idempotency key, also if the card is declined.
"""
import asyncio

receipts: dict[str, str] = {}
attempts: dict[str, int] = {}
kept: dict[str, str | None] = {}
counts = {"looked": 0, "charging": 0}
answered = asyncio.Event()


class Declined(Exception):
    pass


class ProviderAway(Exception):
    pass


async def find_receipt(order: str) -> str | None:
    counts["looked"] += 1
    return receipts.get(order)


async def charge(order: str) -> str:
    counts["charging"] += 1
    if order == "away":
        raise ProviderAway("the provider does not answer")
    attempt = attempts.setdefault(order, 1)
    await answered.wait()
    is_declined = order == "declined" and not any(key.startswith("declined-") for key in kept)
    receipt = kept.setdefault(f"{order}-{attempt}", None if is_declined else f"receipt {counts['charging']} of {order}")
    if receipt is None:
        attempts[order] = attempt + 1
        raise Declined(order)
    return receipt


async def keep_receipt(order: str, receipt: str) -> None:
    receipts[order] = receipt
