// A gateway that asks for API keys.

import { ask, Browser, Curl } from './browser.mjs';
import { assert, until } from './check.mjs';

/** A key of the form that keys have, and that nobody was given. */
const NO_KEY = `fp_${'0'.repeat(12)}_${'0'.repeat(32)}`;

/** `ofAll` may do everything; `ofTeam` may list and break locks below `ci/`; `ofWatcher` may list all and break none. */
export async function keys(url, ofAll, ofTeam, ofWatcher) {
  const browser = await Browser.start();
  const curl = new Curl(url, ofAll);
  await curl.take('ci/build', 'ttl=10m&owner=ci');
  await curl.take('ci/test', 'ttl=10m&owner=ci');
  await curl.take('prod/deploy', 'ttl=10m&owner=alice');

  // Nothing is to be seen before a key is shown, and no key is kept that is none.
  const ui = await browser.open(`${url}/ui`);
  const { page } = ui;
  const question = page.getByRole('heading', { name: 'This gateway asks for a key' });
  const field = page.getByLabel('API key');
  await question.waitFor();
  await ui.focusIsOn(field);
  assert((await page.locator('#rows tr').count()) === 0, 'no lock is shown');
  await field.fill(NO_KEY);
  await page.keyboard.press('Enter');
  await page.getByRole('alert').getByText('does not know the API key').waitFor();
  assert((await field.inputValue()) === '', 'it is to be typed anew');
  await keptIs(page, 0);

  await signIn(ui, ofTeam);
  await ui.shows('ci/build');
  await ui.counts('2 locks held');
  await keptIs(page, 1);
  await page.reload();
  await ui.shows('ci/build');
  await ui.search.fill('prod/');
  await page.getByRole('alert').getByText('only for other names').waitFor();
  await ui.search.fill('ci/');
  await ui.shows('ci/test');
  await ui.button('ci/test').click();
  await ui.dialog.getByRole('button', { name: 'Break it' }).click();
  await ui.lacks('ci/test');

  // Another tab knows nothing of it.
  const other = await browser.openIn(page.context(), `${url}/ui`);
  await other.page.getByRole('heading', { name: 'This gateway asks for a key' }).waitFor();
  await signIn(other, ofWatcher);
  await other.counts('2 locks held');
  await other.button('prod/deploy').click();
  await other.dialog.getByRole('button', { name: 'Break it' }).click();
  await other.dialog.getByRole('alert').getByText('the right "admin"').waitFor();
  assert((await curl.look('prod/deploy')).status === 200, 'it is held yet');

  // A key that is revoked ends what it began.
  await ask('revoke');
  await other.page.getByRole('alert').getByText('revoked').waitFor();
  assert((await other.page.locator('#rows tr').count()) === 0, 'what it let one see is gone');
  await keptIs(other.page, 0);

  await page.getByRole('button', { name: 'Forget the key' }).click();
  await question.waitFor();
  assert((await page.locator('#rows tr').count()) === 0, 'what it let one see is gone');
  await keptIs(page, 0);
  await browser.end();
}

async function signIn({ page }, key) {
  await page.getByLabel('API key').fill(key);
  await page.getByRole('button', { name: 'Use it' }).click();
}

/** A key is kept by the tab at most, and nowhere where others would find it. */
async function keptIs(page, many) {
  await until(`${many} keys are kept`, async () => {
    const found = await page.evaluate(() => {
      const places = [...Object.values(localStorage), document.cookie, location.href, document.body.innerHTML];
      return [Object.values(sessionStorage).filter((value) => value.startsWith('fp_')).length, places.join()];
    });
    assert(!/fp_\w+_\w/.test(found[1]), 'no key is where it should not be');
    return found[0] === many || found[0];
  });
}
