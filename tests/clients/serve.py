"""Serves the shop of docs/recipes/pay.md, and what a test asks besides."""
import os

import payments
import uvicorn
from shop import app


@app.post("/charged")
async def charged() -> dict[str, int]:
    payments.answered.set()
    return payments.counts


@app.get("/health")
async def health() -> dict[str, int]:
    return payments.counts


uvicorn.run(app, host="127.0.0.1", port=int(os.environ["PORT"]), log_level="warning")
