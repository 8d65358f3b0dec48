"""A back end that takes payments: FastAPI, with the async client in examples/clients."""
import asyncio
import os

import uvicorn
from fastapi import FastAPI, HTTPException
from fencepost_async import AsyncFencepost, Busy, Unavailable, Unknown

app = FastAPI()
fencepost = AsyncFencepost()
answers: dict[str, str] = {}  # Of a database, which keeps one answer for each order.
counts = {"paying": 0, "charging": 0}
charged = asyncio.Event()


async def charge(order: str) -> str:
    counts["charging"] += 1
    await charged.wait()
    return f"ch_{len(answers) + 1}"


@app.post("/pay/{order}")
async def pay(order: str) -> dict[str, str | bool]:
    counts["paying"] += 1
    try:
        async with fencepost.hold(f"pay:{order}", ttl_s=30, wait_s=15):
            is_stored = order in answers
            if not is_stored:
                answers[order] = await charge(order)
            return {"charge": answers[order], "stored": is_stored}
    except Busy as error:
        raise HTTPException(409, "this order is being paid already") from error
    except (Unavailable, Unknown) as error:
        raise HTTPException(503, "try again", {"Retry-After": "1"}) from error


@app.post("/charged")
async def provider_answers() -> dict[str, int]:
    charged.set()
    return counts


@app.get("/health")
async def health() -> dict[str, int]:
    return counts


uvicorn.run(app, host="127.0.0.1", port=int(os.environ["PORT"]), log_level="warning")
