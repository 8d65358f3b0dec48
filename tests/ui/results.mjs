// Results of work that a browser could run, and does not: opened, as a script of the page, and in a frame.

import { Browser, Curl } from './browser.mjs';
import { assert } from './check.mjs';

/** Each would say so if it ran. */
const SCRIPT = "globalThis.ran = true; top.document.title = 'ran'";
const RESULTS = {
  'text/html': `<!doctype html><title>result</title><script>${SCRIPT}</script>`,
  'image/svg+xml': `<svg xmlns="http://www.w3.org/2000/svg"><script>${SCRIPT}</script></svg>`,
  'text/javascript': SCRIPT,
};

/** Where a test serves by GET what the gateway answers to a PUT. */
const SERVED = '/served';

/** A page that makes use of an address in each way in which a script could run. */
function embedding(address) {
  const html = `<script src="${address}"></script><iframe src="${address}"></iframe><object data="${address}"></object>`;
  return `<!doctype html><title>embeds</title><body>${html}<iframe srcdoc='<script src="${address}"></script>'></iframe>`;
}

export async function results(url) {
  const curl = new Curl(url);
  const browser = await Browser.start();
  for (const [type, result] of Object.entries(RESULTS)) {
    const address = `/once?key=${encodeURIComponent(type)}`;
    const { token } = (await curl.call('PUT', address)).json;
    const stored = await curl.call('POST', address, token, ['-H', `Content-Type: ${type}`, '-d', result]);
    assert(stored.status === 200, `${type} is stored: ${JSON.stringify(stored)}`);

    // A browser asks for pages and scripts by GET, which never answers with a result. Nor would it run what a PUT answers.
    const serve = (page) =>
      page.route(`${url}${SERVED}`, async (route) =>
        route.fulfill({ response: await route.fetch({ url: `${url}${address}`, method: 'PUT' }) }));
    for (const source of [address, SERVED]) {
      const opened = await browser.visit('about:blank');
      await serve(opened);
      await opened.goto(`${url}${source}`, { waitUntil: 'load' }).catch(() => {});
      assert((await opened.title()) !== 'ran', `${type} ran when it was opened`);
    }

    // In a page of the gateway's own, as it is and without its policy: as a script, and in frames.
    const page = await browser.visit(`${url}/ui`);
    const policy = (await page.goto(`${url}/ui`)).headers()['content-security-policy'];
    assert(policy.includes("script-src 'self'"), policy);
    const answer = await page.evaluate(async (address) => {
      const { headers } = await fetch(address, { method: 'PUT' });
      return [...headers].map(([name, value]) => `${name}: ${value}`);
    }, address);
    await serve(page);
    for (const [headers, source] of [policy, ''].flatMap((policy) =>
      [address, SERVED].map((source) => [policy ? { 'content-security-policy': policy } : {}, source]))) {
      await page.route(`${url}/embeds`, (route) =>
        route.fulfill({ contentType: 'text/html', headers, body: embedding(source) }));
      await page.goto(`${url}/embeds`, { waitUntil: 'load' });
      const ran = await Promise.all(page.frames().map((frame) => frame.evaluate('globalThis.ran === true')));
      const title = await page.title();
      assert(!ran.includes(true) && title === 'embeds', `${type} ran in ${title}: ${ran}`);
      await page.unroute(`${url}/embeds`);
    }
    const told = (header) => assert(answer.includes(header), `${header} of ${type}: ${answer}`);
    told('content-type: application/octet-stream');
    told(`once-content-type: ${type}`);
    told('x-content-type-options: nosniff');
    told('content-disposition: attachment');
  }
  await browser.close();
}
