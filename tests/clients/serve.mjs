/** Serves the shop of docs/recipes/pay.md, and what a test asks besides. */
import { counts, provider } from "./payments.mjs";
import { app } from "./shop.mjs";

app.post("/charged", (_, response) => {
  provider.dispatchEvent(new Event("answer"));
  response.json(counts);
});
app.get("/health", (_, response) => response.json(counts));
app.listen(Number(process.env.PORT), "127.0.0.1");
