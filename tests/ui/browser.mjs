// A real browser with the page in it, and a real curl beside it.

import { execFile, execFileSync } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { assert, PATIENCE_MS, until } from './check.mjs';

/** What a browser writes of its own accord when a request fails, which is the page's business. */
const FAILED_REQUEST = 'Failed to load resource';

const [packages, artefacts] = process.argv.slice(2);
const { chromium } = createRequire(`${packages}/`)('playwright-core');

/** Has whoever runs this do something, such as `cut`. */
const answers = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
export async function ask(what) {
  console.log(`ask ${what}`);
  await answers.next();
}

/** What curl was told: the status, the body, and the token of a grant. */
export class Curl {
  tokens = [];

  constructor(url, key) {
    this.url = url;
    this.headers = key ? ['-H', `Authorization: Bearer ${key}`] : [];
  }

  async call(method, address, token, further = []) {
    const more = token ? ['-H', `Lease-Token: ${token}`] : [];
    const args = ['-sS', '-X', method, '-w', '\n%{http_code}', ...this.headers, ...more, ...further, `${this.url}${address}`];
    const output = await new Promise((resolve, reject) => {
      execFile('curl', args, (error, stdout, stderr) => (error ? reject(new Error(stderr)) : resolve(stdout)));
    });
    const [, body, status] = /^([^]*)\n(\d+)$/.exec(output);
    const json = body.trim() ? JSON.parse(body) : undefined;
    if (json?.token) {
      this.tokens.push(json.token);
      console.log(`token ${json.token}`);
    }
    return { status: Number(status), json };
  }

  /** Takes a lock, as it must be possible to; returns the grant. */
  async take(key, query = '') {
    const answer = await this.call('PUT', `/lock?key=${encodeURIComponent(key)}&${query}`);
    assert(answer.status === 201, `${key} is granted: ${JSON.stringify(answer)}`);
    return answer.json;
  }

  async release(grant) {
    const answer = await this.call('DELETE', `/lock?key=${encodeURIComponent(grant.key)}`, grant.token);
    assert(answer.status === 204, `${grant.key} is released`);
  }

  look(key) {
    return this.call('GET', `/lock?key=${encodeURIComponent(key)}`);
  }
}

/** What pages did that none should do. */
export const complaints = [];

const browsers = [];

/** Ends all browsers: one that is killed leaves its temporary files behind. */
export const closeAll = () => Promise.all(browsers.map((browser) => browser.close()));

export class Browser {
  #browser;

  static async start() {
    const browser = new Browser();
    const executablePath = execFileSync('sh', ['-c', 'command -v chromium']).toString().trim();
    // Also where the tests run as root: the only pages that it shows are those of the gateway.
    browser.#browser = await chromium.launch({ executablePath, chromiumSandbox: false });
    browsers.push(browser.#browser);
    return browser;
  }

  /** Opens the page as somebody who was never here. What it should not do is remembered. */
  async open(url, { hasOwnClock, ...options } = {}) {
    const context = await this.#browser.newContext({ viewport: { width: 1200, height: 760 }, ...options });
    context.setDefaultTimeout(PATIENCE_MS);
    if (hasOwnClock) await context.clock.install();
    return this.openIn(context, url);
  }

  async openIn(context, url) {
    const page = await context.newPage();
    const complain = (what) => complaints.push(`${page.url()}: ${what}`);
    page.on('pageerror', (error) => complain(error.stack));
    page.on('dialog', (dialog) => complain(`a dialog of the browser: ${dialog.message()}`));
    page.on('console', (message) => {
      if (!message.text().startsWith(FAILED_REQUEST)) complain(`${message.type()}: ${message.text()}`);
    });
    page.on('request', (request) => {
      if (!request.url().startsWith(new URL(url).origin)) complain(`it asks ${request.url()}`);
    });
    await page.exposeFunction('complain', complain);
    await page.addInitScript(() => {
      addEventListener('securitypolicyviolation', (event) => {
        globalThis.complain(`the policy forbids ${event.violatedDirective} ${event.blockedURI}`);
      });
    });
    await page.goto(url);
    return new Page(page);
  }

  /** Opens a page of another site, which may complain of whatever it likes. */
  async visit(url) {
    const page = await (await this.#browser.newContext()).newPage();
    await page.goto(url, { waitUntil: 'load' });
    return page;
  }

  async close() {
    await this.#browser.close();
  }

  /** Nothing that should not have happened has. */
  async end() {
    await this.#browser.close();
    assert(complaints.length === 0, complaints.join('\n'));
  }
}

/** The page, as whoever uses it sees it. */
export class Page {
  constructor(page) {
    this.page = page;
    this.dialog = page.getByRole('dialog', { name: 'Break this lock?' });
    this.search = page.getByRole('searchbox');
  }

  /** The row of a lock: of this very name, and not of one that only looks the same. */
  row(key) {
    return this.page.locator(`tr[role="row"]:has(th[title=${JSON.stringify(key)}])`);
  }

  button(key) {
    return this.row(key).getByRole('button');
  }

  cell(key, name) {
    return this.row(key).locator(`.${name}`);
  }

  async shows(key) {
    await this.row(key).waitFor();
  }

  async lacks(key) {
    await this.row(key).waitFor({ state: 'detached' });
  }

  /** So many are held, by what the page says of them. */
  async counts(text) {
    await this.page.locator('#count').getByText(text, { exact: true }).waitFor();
  }

  async isLive() {
    await this.page.getByText('Live', { exact: true }).waitFor();
  }

  /** What is left of a lease by the page, in seconds. */
  async left(key) {
    const units = { h: 3600, min: 60, s: 1 };
    const parts = (await this.cell(key, 'left').innerText()).matchAll(/(\d+) (h|min|s)/g);
    return [...parts].reduce((sum, [, amount, unit]) => sum + Number(amount) * units[unit], 0);
  }

  async focusIsOn(locator) {
    await until('the focus is there', () => locator.evaluate((element) => element === document.activeElement));
  }

  /** Nothing must be scrolled to the side for. */
  async fits() {
    const [content, room] = await this.page.evaluate(() => {
      const root = document.documentElement;
      return [root.scrollWidth, root.clientWidth];
    });
    assert(content <= room, `${content} px of content fit into ${room} px`);
  }

  async shot(name) {
    mkdirSync(artefacts, { recursive: true });
    await this.page.screenshot({ path: `${artefacts}/${name}.png` });
  }
}
