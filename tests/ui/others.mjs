// Swagger UI under the policy that is sent with it, and what pages of other sites can do with this gateway.

import { createServer } from 'node:http';
import { Browser, Curl } from './browser.mjs';
import { assert, until } from './check.mjs';

/** Another site: it serves one page, by a name that is not the gateway's. */
async function elsewhere(html) {
  const server = createServer((_, response) => response.setHeader('Content-Type', 'text/html').end(html));
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return { url: `http://localhost:${server.address().port}/`, close: () => server.close() };
}

export async function introduction(url) {
  const browser = await Browser.start();
  const curl = new Curl(url);
  const docs = await browser.open(`${url}/docs/`);
  const { page } = docs;
  await page.getByRole('heading', { name: 'Fencepost' }).waitFor();
  const put = page.locator('#operations-locks-acquire_lock_by_query');
  await put.locator('.opblock-summary-control').click();
  await put.getByPlaceholder('key').fill('from/docs');
  await put.getByRole('button', { name: 'Execute' }).click();
  await put.locator('.live-responses-table').getByText('201').first().waitFor();
  const held = await curl.look('from/docs');
  assert(held.status === 200, 'what is tried out is done');
  // What it shows of an answer, and of a schema.
  await put.locator('.live-responses-table').getByText('fencing_token').first().waitFor();
  await docs.shot('docs');
  await browser.end();

  for (const path of ['/docs/', '/docs/index.html', '/ui']) {
    const site = await elsewhere(`<iframe src="${url}${path}" width="900" height="700"></iframe>`);
    const visitor = await Browser.start();
    const shown = await visitor.visit(site.url);
    await until(`${path} was asked for`, () => shown.frames().length === 2);
    await until(`${path} is not shown`, async () => {
      const text = await shown.frames()[1].locator('body').innerText().catch(() => '');
      return shown.frames()[1].url().startsWith('chrome-error:') || text;
    });
    await visitor.close();
    site.close();
  }
}

/** What a page is told when it embeds an address in each way there is. */
const WAYS = {
  object: (address) => `<object data="${address}" onload="told('load')" onerror="told('error')"></object>`,
  embed: (address) => `<embed src="${address}" onload="told('load')" onerror="told('error')">`,
  image: (address) => `<img src="${address}" onload="told('load')" onerror="told('error')">`,
  script: (address) => `<script src="${address}" onload="told('load')" onerror="told('error')"></script>`,
  style: (address) => `<link rel="stylesheet" href="${address}" onload="told('load')" onerror="told('error')">`,
};

export async function spying(url) {
  const curl = new Curl(url);
  await curl.take('held', 'ttl=10m');
  for (const [way, html] of Object.entries(WAYS)) {
    const told = {};
    for (const lock of ['held', 'free']) {
      const script = '<script>globalThis.events = []; const told = (what) => events.push(what)</script>';
      const site = await elsewhere(`<!doctype html>${script}<body>${html(`${url}/locks/${lock}`)}</body>`);
      const visitor = await Browser.start();
      const page = await visitor.visit(site.url);
      // However long an answer takes, this page comes after it; not all ways tell anything.
      await page.waitForTimeout(300);
      told[lock] = JSON.stringify(await page.evaluate('events'));
      await visitor.close();
      site.close();
    }
    assert(told.held === told.free, `${way}: a held lock says ${told.held}, a free one ${told.free}`);
  }
}
