// Runs one of the scenarios: `node main.mjs PACKAGES ARTEFACTS SCENARIO URL…`. The first thing that is not so ends it.

import { closeAll, complaints } from './browser.mjs';
import * as keys from './keys.mjs';
import * as merging from './merging.mjs';
import * as names from './names.mjs';
import * as others from './others.mjs';
import * as outage from './outage.mjs';
import * as results from './results.mjs';
import * as several from './several.mjs';
import * as watching from './watching.mjs';

const [, , , , scenario, ...args] = process.argv;
try {
  await { ...keys, ...merging, ...names, ...others, ...outage, ...results, ...several, ...watching }[scenario](...args);
  await closeAll();
  process.exit(0);
} catch (error) {
  console.log([error.stack, ...complaints].join('\n'));
  process.exit(1);
}
