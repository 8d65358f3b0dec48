// A gateway that is out of reach for a while, and one with more locks than anybody reads.

import { ask, Browser, Curl } from './browser.mjs';
import { assert, until } from './check.mjs';

export async function outage(url, through) {
  const browser = await Browser.start();
  const curl = new Curl(url);
  await curl.take('stays', 'ttl=10m');
  const goes = await curl.take('goes', 'ttl=10m');
  const ui = await browser.open(`${through}/ui`);
  await ui.shows('goes');
  await ask('cut');
  await ui.page.getByText('The gateway cannot be reached.').waitFor();
  await ui.page.getByText(/What is shown is .* old/).waitFor();
  // What was known stays in sight; what is asked of the gateway is not said to have been done.
  await ui.shows('stays');
  await ui.button('stays').click();
  await ui.dialog.getByRole('button', { name: 'Break it' }).click();
  await ui.dialog.getByRole('alert').getByText('The gateway cannot be reached.').waitFor();
  await ui.dialog.getByRole('button', { name: 'Keep it' }).click();
  await curl.release(goes);
  await curl.take('comes', 'ttl=10m');
  await ask('restore');
  // It tries by itself, too, and may be the first.
  await ui.page.getByRole('button', { name: 'Try now' }).click({ timeout: 2_000 }).catch(() => {});
  await ui.shows('comes');
  await ui.lacks('goes');
  await ui.shows('stays');
  await ui.isLive();
  await until('nothing is wrong any more', () => ui.page.locator('#away').isHidden());
  await browser.end();
}

/** Of a gateway at which only one may watch. */
export async function turnedAway(url) {
  const browser = await Browser.start();
  const curl = new Curl(url);
  await curl.take('backup', 'ttl=10m');
  const first = await browser.open(`${url}/ui`);
  await first.shows('backup');
  await first.isLive();
  const second = await browser.open(`${url}/ui`);
  // It lists them at least.
  await second.shows('backup');
  await second.page.getByText('Too many streams of events are open already').waitFor();
  await first.page.close();
  await second.isLive();
  await curl.take('next', 'ttl=10m');
  await second.shows('next');
  await browser.end();
}

/** Time passes by the browser's clock, faster than by all others. */
export async function patience(url) {
  const browser = await Browser.start();
  const curl = new Curl(url);
  await curl.take('backup', 'ttl=10m');
  const ui = await browser.open(`${url}/healthz`, { hasOwnClock: true });
  const streams = { begun: 0, ended: 0 };
  const isStream = (request) => request.url().includes('/events?');
  ui.page.on('request', (request) => (streams.begun += isStream(request)));
  ui.page.on('requestfailed', (request) => (streams.ended += isStream(request)));
  await ui.page.goto(`${url}/ui`);
  await ui.shows('backup');

  // A gateway that says nothing for long is gone, whatever the connection looks like.
  await ui.page.clock.runFor(30_000);
  await until('another connection is made', () => streams.begun === 2 && streams.ended === 1);
  await ui.isLive();
  // Nor does one outlive the sleep of the machine, in which the page's clock may have stood still.
  await ui.page.clock.fastForward(15_000);
  await until('another connection is made', () => streams.begun === 3 && streams.ended === 2);
  await ui.isLive();

  // A page that nobody looks at gives its connection back, and takes it up again when somebody does.
  await hide(ui, true);
  await ui.page.clock.runFor(5_000);
  await hide(ui, false);
  assert(streams.ended === 2, 'a short look at another page ends nothing');
  await hide(ui, true);
  await ui.page.clock.runFor(15_000);
  await until('the connection is closed', () => streams.ended === 3);
  assert(streams.begun === 3, 'and no other is made');
  const grant = await curl.take('meanwhile', 'ttl=10m');
  await hide(ui, false);
  await ui.shows(grant.key);
  assert(streams.begun === 4, 'by one more connection');
  await browser.end();
}

const hide = (ui, isHidden) =>
  ui.page.evaluate((isHidden) => {
    Object.defineProperty(document, 'hidden', { value: isHidden, configurable: true });
    document.dispatchEvent(new Event('visibilitychange'));
  }, isHidden);

/** Of a gateway that takes connections and does not answer, while and after the page is hidden. */
export async function unanswered(url) {
  const browser = await Browser.start();
  const curl = new Curl(url);
  await curl.take('backup', 'ttl=10m');
  const ui = await browser.open(`${url}/healthz`, { hasOwnClock: true });
  await ui.page.goto(`${url}/ui`);
  await ui.shows('backup');
  await ui.isLive();
  let asked = 0;
  await ui.page.route('**/events?*', () => void (asked += 1));
  await hide(ui, true);
  await ui.page.clock.runFor(180_000);
  await hide(ui, false);
  await until('it is asked', () => asked === 1);
  await ui.page.clock.runFor(3_000);
  await ui.page.getByText('The gateway has not answered yet.').waitFor();
  await ui.page.getByText(/What is shown is 3 min .* old/).waitFor();
  await ui.page.getByRole('button', { name: 'Try now' }).click();
  await until('it is asked anew', () => asked === 2);
  await ui.page.clock.runFor(26_000);
  await ui.page.getByText('The gateway has fallen silent.').waitFor();
  // The same goes for what is asked once.
  await ui.page.route('**/lock?*force=true*', () => {});
  await ui.button('backup').click();
  await ui.dialog.getByRole('button', { name: 'Break it' }).click();
  await ui.page.clock.runFor(26_000);
  await ui.dialog.getByRole('alert').getByText('The gateway has fallen silent.').waitFor();
  await ui.dialog.getByRole('button', { name: 'Keep it' }).click();
  await ui.page.unrouteAll();
  // It tries by itself, too, and may be the first.
  await ui.page.getByRole('button', { name: 'Try now' }).click({ timeout: 2_000 }).catch(() => {});
  await ui.isLive();
  await browser.end();
}

/** A stream that says again and again that something was missed, as while a store is away. */
export async function pauses(url) {
  const browser = await Browser.start();
  const ui = await browser.open(`${url}/healthz`);
  await ui.page.addInitScript(() => {
    const ask = globalThis.fetch;
    globalThis.fetch = async (address, options) => {
      if (!String(address).startsWith('events?')) return ask(address, options);
      const resync = new TextEncoder().encode('{"event":"resync"}\n');
      const body = new ReadableStream({ start: (lines) => void setInterval(() => lines.enqueue(resync), 50) });
      return new Response(body, { headers: { 'Content-Type': 'application/x-ndjson' } });
    };
  });
  const listedAt = [];
  ui.page.on('request', (request) => request.url().includes('/locks?') && listedAt.push(Date.now()));
  await ui.page.goto(`${url}/ui`);
  await until('it lists again', () => listedAt.length >= 4 || listedAt.length);
  const took = listedAt[3] - listedAt[0];
  assert(took > 2_500, `there is a second between lists: ${took} ms for three`);
  await browser.end();
}

export async function crowd(url, many) {
  const browser = await Browser.start();
  const ui = await browser.open(`${url}/ui`);
  const wanted = Number(many).toLocaleString('en');
  await ui.counts(`${wanted} locks held`);
  await ui.page.getByText(`200 of ${wanted} are shown`).waitFor();
  const rows = ui.page.locator('#rows tr');
  assert((await rows.count()) === 200, 'as many rows as are said');
  await ui.page.getByRole('button', { name: 'Show 200 more' }).click();
  assert((await rows.count()) === 400, 'more rows');
  await ui.search.fill('job/0012');
  await ui.counts('100 locks held');
  await ui.isLive();
  // Of other names, nothing is known before they are listed.
  const saysNothing = await ui.page.evaluate(() => {
    const search = document.getElementById('prefix');
    search.value = 'job/0013';
    search.dispatchEvent(new Event('input'));
    return !document.getElementById('nothing').hidden;
  });
  assert(!saysNothing, 'it says that none is held before it has asked');
  await until('they are shown', async () => /job\/0013/.test(await rows.first().innerText()));
  await ui.counts('100 locks held');
  // The most wanted first.
  await ui.search.fill('');
  await ui.page.getByRole('button', { name: 'Waiting' }).click();
  await until('it stands first', async () => /job\/001999/.test(await rows.first().innerText()));
  const header = ui.page.getByRole('columnheader', { name: 'Waiting' });
  assert((await header.getAttribute('aria-sort')) === 'descending', 'the order is told');
  await browser.end();
}
