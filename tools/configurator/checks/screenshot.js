// node checks/screenshot.js FOLDER FILE: a screenshot of the page for the README. Prints the words
// that it shows, without numbers, as JSON.

import { join, resolve } from "node:path";

import { launch } from "./chromium.js";

const [folder, screenshot] = process.argv.slice(2);
const ANSWERS = "#workload=llm&gpu=rtx_4090&extras=check,benchmark&file=src/my_training/train.py";
const SIZE = { width: 1280, height: 800 };

/** The words of the answers, of the command and of the buttons that lie in the window. */
function shownWords() {
  const isShown = (element) => {
    const { top, bottom } = element.getBoundingClientRect();
    return top >= 0 && bottom <= globalThis.innerHeight;
  };
  const elements = document.querySelectorAll("legend, .choice, .help, #command, button.strong");
  const texts = [...elements].filter(isShown).map((element) => element.textContent);
  return texts.join("\n").replace(/\d+/g, "");
}

const browser = await launch();
const page = await browser.newPage();
page.setDefaultTimeout(300_000);
await page.setViewport(SIZE);
await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: "light" }]);
await page.goto(`file://${join(resolve(folder), "index.html")}${ANSWERS}`);
await page.waitForFunction("document.querySelector('#code table')");
await page.screenshot({ path: screenshot });
console.log(JSON.stringify(await page.evaluate(shownWords)));
await browser.close();
