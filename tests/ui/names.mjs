// Names that somebody chose to deceive or to break the page, and the page on a phone and in the dark.

import { Browser, Curl } from './browser.mjs';
import { assert, until } from './check.mjs';

const NAMES = [
  '<img src=x onerror=alert(1)>',
  '"><script>alert(1)</script>',
  '{{7*7}}${7*7}',
  'javascript:alert(1)',
  '__proto__',
  'constructor',
  '백업/日本語/שלום/مرحبا',
  '\u202egnp.exe\u2066',
  'backup',
  'backup\u200b',
  'backup\u2800',
  'back\u034fup',
  'backup\ufe0f',
  'back\u{e0041}up\u180b',
  ' backup ',
  'a%2Fb&c=d#e+f?g',
  `long/${'x'.repeat(500)}`,
];

export async function names(url) {
  const browser = await Browser.start();
  const curl = new Curl(url);
  for (const name of NAMES) await curl.take(name, `ttl=10m&owner=${encodeURIComponent(name.slice(0, 60))}`);
  const ui = await browser.open(`${url}/ui`);
  await ui.counts(`${NAMES.length} locks held`);
  for (const name of NAMES) await ui.shows(name);
  await ui.fits();

  // What would not be seen, or would turn the text around, is shown by a sign.
  const shown = await ui.page.locator('.key').allInnerTexts();
  const signs = ['backupU+200B', 'backupU+2800', 'backU+034Fup', 'backupU+FE0F', 'backU+E0041upU+180B', '·backup·'];
  for (const text of ['backup', ...signs, 'U+202Egnp.exeU+2066', NAMES[0], NAMES[1]]) {
    assert(shown.filter((other) => other.trim() === text).length === 1, `${text} is among ${shown}`);
  }
  assert((await ui.page.locator('main img, main script, #rows a').count()) === 0, 'no text became markup');

  // Each can be searched for, and broken under the question that names it.
  for (const name of NAMES) {
    await ui.search.fill(name);
    const wanted = NAMES.filter((other) => other.startsWith(name)).length;
    await until(`${name} is found`, async () => {
      const count = await ui.page.locator('#count').innerText();
      const isListed = (await ui.page.locator('#connection').innerText()) === 'Live';
      return (isListed && count === `${wanted} ${wanted === 1 ? 'lock' : 'locks'} held`) || count;
    });
  }
  await ui.search.fill('');
  await ui.button(NAMES[0]).click();
  await ui.dialog.getByText(NAMES[0], { exact: true }).first().waitFor();
  await ui.dialog.getByRole('button', { name: 'Break it' }).click();
  await ui.lacks(NAMES[0]);
  assert((await curl.look(NAMES[0])).status === 404, 'it is broken');

  // A search is kept in the address, and reaches the server only as a parameter of what the page asks.
  const found = await browser.open(`${url}/ui#prefix=nobody%2Fhas+this`);
  const nothing = 'No lock is held whose name begins with “nobody/has this”';
  await found.page.getByRole('heading', { name: nothing }).waitFor();

  await phone(browser, url);
  await browser.end();
}

async function phone(browser, url) {
  const looks = { viewport: { width: 360, height: 740 }, colorScheme: 'dark', reducedMotion: 'reduce' };
  const ui = await browser.open(`${url}/ui`, { ...looks, hasTouch: true, isMobile: true });
  const long = NAMES.at(-1);
  await ui.shows(long);
  await ui.fits();
  const style = (selector, name) =>
    ui.page.locator(selector).first().evaluate((element, name) => getComputedStyle(element)[name], name);
  const [red, green, blue] = (await style('body', 'backgroundColor')).match(/\d+/g).map(Number);
  assert(red + green + blue < 150, 'the page is dark');
  assert((await style('.act button', 'height')).replace('px', '') >= 44, 'a finger hits the button');
  await ui.shot('ui-phone');
  await ui.button(long).tap();
  await ui.dialog.waitFor();
  for (const name of ['Keep it', 'Break it']) {
    const box = await ui.dialog.getByRole('button', { name }).boundingBox();
    assert(box.x >= 0 && box.x + box.width <= 360 && box.y + box.height <= 740, `${name} is in sight`);
  }
  await ui.fits();
  await ui.shot('ui-phone-dialog');
}
