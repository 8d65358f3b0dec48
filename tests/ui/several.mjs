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
}
