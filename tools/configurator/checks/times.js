// node checks/times.js FOLDER: milliseconds from a click to painted code, each a median of ten.

import { join, resolve } from "node:path";

import { launch } from "./chromium.js";

const address = `file://${join(resolve(process.argv[2]), "index.html")}`;
const ROUNDS = 10;

/** In the page: press a button, and wait until the frame after the one with the code. */
async function paint(id) {
  const isOther = id.startsWith("workload");
  const before = document.querySelector("#code table");
  const isDone = () => !isOther || document.querySelector("#code table") !== before;
  const frame = () => new Promise((done) => globalThis.requestAnimationFrame(done));
  const start = performance.now();
  document.getElementById(id).click();
  while (!isDone()) {
    await frame();
  }
  await frame();
  await frame();
  return performance.now() - start;
}

const median = (times) => {
  const sorted = [...times].sort((one, other) => one - other);
  return (sorted[ROUNDS / 2 - 1] + sorted[ROUNDS / 2]) / 2;
};

const browser = await launch();
const times = { open: [], workload: [], again: [], answer: [] };
for (let round = 0; round < ROUNDS; round += 1) {
  const page = await browser.newPage();
  const start = performance.now();
  await page.goto(address);
  await page.waitForFunction("document.querySelector('#code table')");
  times.open.push(performance.now() - start);
  times.workload.push(await page.evaluate(paint, "workload-llm"));
  await page.evaluate(paint, "workload-tabular");
  times.again.push(await page.evaluate(paint, "workload-llm"));
  times.answer.push(await page.evaluate(paint, "precision-bf16"));
  await page.close();
}
for (const [name, all] of Object.entries(times)) {
  const rounded = [...all].sort((one, other) => one - other).map(Math.round);
  console.log(name.padEnd(10), `${Math.round(median(all))} ms`, ` of ${rounded.join(" ")}`);
}
await browser.close();
