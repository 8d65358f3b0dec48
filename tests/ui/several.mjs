// A lock that several hold: the question of the page names each of them, and only the one that is chosen is broken.

import { Browser, Curl } from './browser.mjs';
import { assert, until } from './check.mjs';

export async function several(url) {
  const browser = await Browser.start();
  const curl = new Curl(url);
  const first = await curl.take('pool', 'ttl=10m&slots=3&owner=first');
  const second = await curl.take('pool', `ttl=20m&slots=5&owner=${encodeURIComponent('<b>second')}`);
  await curl.take('alone', 'ttl=10m&owner=nobody-else');
  const ui = await browser.open(`${url}/ui`);
  await ui.shows('pool');
  await ui.button('pool').click();
  const radio = (owner) => ui.dialog.getByRole('radio', { name: owner });
  await radio('<b>second').waitFor();
  await ui.dialog.getByText('2 of at most 3 hold it. Whose grant?').waitFor();
  assert(await radio('first').isChecked(), 'the one that the list has shown is chosen');
  await ui.fits();
  await radio('<b>second').check();
  const fence = async () => Number(await ui.page.locator('#breaking-fence').innerText());
  await until('the question is about the other one', async () => (await fence()) === second.fencing_token);
  await ui.dialog.getByRole('button', { name: 'Break it' }).click();
  await ui.dialog.waitFor({ state: 'hidden' });
  const { json: left } = await curl.call('GET', '/lock?key=pool&holders=true');
  assert(left.held === 1 && left.fencing_token === first.fencing_token, `only the other one is broken: ${left}`);

  // Of a lock that one holds alone, there is nothing to choose.
  await ui.button('alone').click();
  await ui.dialog.getByText('nobody-else').waitFor();
  await ui.dialog.getByRole('button', { name: 'Break it' }).click();
  await ui.lacks('alone');
  assert(!(await ui.page.locator('#breaking-several').isVisible()), 'it shows the sharers of another lock');
  await ui.shows('pool');

  await itFollowsWhoSharesIt(ui, curl);
  await aSlowLookAddsNoTime(ui, curl);
  await browser.end();
}

/** While the question is open, it goes on naming those who hold the lock by now. */
async function itFollowsWhoSharesIt(ui, curl) {
  const take = (owner, query = '') => curl.take('crew', `ttl=10m&slots=4&owner=${owner}${query}`);
  const [leaves, stays] = [await take('leaves'), await take('stays')];
  const kept = await take('kept', '&min_hold=9m');
  const radio = (owner) => ui.dialog.getByRole('radio', { name: owner });
  const breakIt = ui.dialog.getByRole('button', { name: 'Break it' });
  await ui.button('crew').click();
  await radio('leaves').check();
  await curl.release(leaves);
  await ui.dialog.getByRole('alert').getByText('This grant is over. To break another one, choose it.').waitFor();
  await ui.focusIsOn(ui.dialog.getByRole('button', { name: 'Keep it' }));
  assert((await radio('leaves').count()) === 0, 'there is no choosing it');
  assert(await breakIt.isDisabled(), 'none is broken that was not chosen');

  await curl.release(kept);
  await radio('kept').and(radio('released, kept for its min_hold')).waitFor();
  await radio('stays').check();
  const comes = await take('comes');
  await radio('comes').waitFor();
  await ui.dialog.getByText('3 of at most 4 hold it. Whose grant?').waitFor();
  await ui.focusIsOn(radio('stays'));
  assert((await radio('stays').isChecked()) && (await breakIt.isEnabled()), 'what was chosen stays so');

  // The gateway knows earlier than the page that it is over.
  await ui.page.route('**/lock?*force=true*', async (route) => {
    await curl.release(stays);
    await route.continue();
  });
  await breakIt.click();
  await ui.dialog.getByRole('alert').getByText('This grant is over').waitFor();
  await ui.page.unroute('**/lock?*force=true*');
  await radio('kept').check();
  await breakIt.click();
  await ui.dialog.waitFor({ state: 'hidden' });

  await ui.button('crew').click();
  await radio('comes').waitFor();
  await curl.release(comes);
  await ui.dialog.getByRole('alert').getByText('Nobody holds it any more').waitFor();
  assert(!(await ui.page.locator('#breaking-several').isVisible()), 'it names those who shared the lock');
  await ui.dialog.getByRole('button', { name: 'Keep it' }).click();
  await ui.lacks('crew');
}

/** What is left counts from when it was asked for, and not from when the answer came. */
async function aSlowLookAddsNoTime(ui, curl) {
  const [looksForMs, slackS] = [5000, 2];
  await curl.take('slow', 'ttl=10m&slots=2&owner=slow');
  const takenAt = Date.now();
  const looks = '**/lock?*holders=true*';
  await ui.page.route(looks, async (route) => {
    const response = await route.fetch();
    await new Promise((resolve) => setTimeout(resolve, looksForMs));
    await route.fulfill({ response });
  });
  await ui.button('slow').click();
  const row = ui.dialog.locator('#breaking-holders .slot');
  await row.waitFor();
  await until('the page shows no more time than there is', async () => {
    const text = await row.innerText();
    const [, min, s] = /(\d+) min (\d+) s left/.exec(text);
    return Number(min) * 60 + Number(s) <= 600 - (Date.now() - takenAt) / 1000 + slackS || text;
  });
  await ui.page.unroute(looks);
  await ui.dialog.getByRole('button', { name: 'Keep it' }).click();
}
