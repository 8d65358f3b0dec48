"""What stands for a database and a payment provider, where a test says when the provider answers."""
import asyncio

receipts: dict[str, str] = {}
counts = {"looked": 0, "charging": 0}
answered = asyncio.Event()


async def find_receipt(order: str) -> str | None:
    counts["looked"] += 1
    return receipts.get(order)


async def charge(order: str) -> str:
    counts["charging"] += 1
    await answered.wait()
    return f"receipt {counts['charging']} of {order}"


async def keep_receipt(order: str, receipt: str) -> None:
    receipts[order] = receipt
