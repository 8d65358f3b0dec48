/** A back end that takes payments: Express, with the client in examples/clients. */
import { once } from "node:events";
import express from "express";
import { Busy, Fencepost, Unavailable, Unknown } from "./fencepost.mjs";

const app = express();
const fencepost = new Fencepost();
const answers = new Map(); // Of a database, which keeps one answer for each order.
const counts = { paying: 0, charging: 0 };
const charged = new EventTarget();

async function charge() {
  counts.charging += 1;
  await once(charged, "charged");
  return `ch_${answers.size + 1}`;
}

app.post("/pay/:order", async (request, response) => {
  const { order } = request.params;
  counts.paying += 1;
  try {
    await fencepost.hold(`pay:${order}`, { ttlMs: 30_000, waitMs: 15_000 }, async () => {
      const stored = answers.has(order);
      if (!stored) answers.set(order, await charge());
      response.json({ charge: answers.get(order), stored });
    });
  } catch (error) {
    if (error instanceof Busy) response.status(409).json({ detail: "this order is being paid already" });
    else if (error instanceof Unavailable || error instanceof Unknown) response.status(503).set("Retry-After", "1").json({});
    else throw error;
  }
});
app.post("/charged", (_, response) => {
  charged.dispatchEvent(new Event("charged"));
  response.json(counts);
});
app.get("/health", (_, response) => response.json(counts));
app.listen(Number(process.env.PORT), "127.0.0.1");
