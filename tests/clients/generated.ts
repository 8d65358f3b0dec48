/** Does what a test says, line by line, with openapi-fetch and the types that openapi-typescript makes of the document. */
import { createInterface } from "node:readline";
import { env, stdin } from "node:process";
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

const client = createClient<paths>({ baseUrl: env.FENCEPOST_URL });
const header = { "Lease-Token": crypto.randomUUID() };
let key = "";

function must<T>(value: T | undefined, problem: components["schemas"]["Problem"] | undefined): T {
  if (value === undefined) throw new Error(problem?.detail);
  return value;
}

for await (const line of createInterface({ input: stdin })) {
  const [verb, ...args] = line.split(" ");
  if (verb === "acquire") {
    key = args[0] ?? "";
    const query = { ttl: `${args[1]}s`, wait: `${args[2]}s` };
    const { data, error } = await client.PUT("/locks/{key}", { params: { path: { key }, query, header } });
    const isBusy = error?.type.startsWith("/problems/") && error.status === 423 && error.holder;
    console.log(isBusy ? "busy" : `granted ${must(data, error).fencing_token}`);
  } else if (verb === "renew") {
    const query = { ttl: `${args[0]}s` };
    const renewed = await client.PATCH("/locks/{key}", { params: { path: { key }, query, header } });
    const lock = await client.GET("/lock", { params: { query: { key }, header } });
    const { yours, fencing_token } = must(lock.data, lock.error);
    const isSame = fencing_token === must(renewed.data, renewed.error).fencing_token;
    console.log(yours && isSame ? "renewed" : "another's");
  } else if (verb === "release") {
    const { error, response } = await client.DELETE("/lock", { params: { query: { key }, header } });
    console.log(response.status === 204 ? "released" : error?.detail);
  }
}
