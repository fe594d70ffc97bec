// node checks/screenshots.js FOLDER SCREENSHOTS: screenshots of the page, to look at.

import { mkdirSync } from "node:fs";
import { join, resolve } from "node:path";

import { launch } from "./chromium.js";

const [folder, screenshots] = process.argv.slice(2);
const PAGES = {
  default: "",
  answers: "#workload=llm&gpu=v100&tracker=wandb&extras=check,benchmark&file=README.md",
  difference: "#workload=llm&gpu=h100&precision=fp8&vs=workload%3Dllm&file=pyproject.toml",
  script: "#workload=tabular&layout=script&project_name=Cats+%26+dogs",
  error: "#project_name=torch+%3A+x&package_name=torch&gpu=other&gpu_compute_capability=7.0",
};
const SIZES = [
  [1280, 900],
  [390, 844],
];

async function take(browser, name, width, height, scheme) {
  const page = await browser.newPage();
  page.setDefaultTimeout(300_000);
  const isPhone = width < 500;
  await page.setViewport({ width, height, isMobile: isPhone, hasTouch: isPhone });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  await page.goto(`file://${resolve(folder, "index.html")}${PAGES[name]}`);
  await page.waitForFunction("document.querySelector('#code table')");
  await page.screenshot({ path: join(screenshots, `${name}-${width}-${scheme}.png`) });
  for (const pane of isPhone ? ["files", "code"] : []) {
    await page.click(`#tabs [data-pane=${pane}]`);
    await page.screenshot({ path: join(screenshots, `${name}-${width}-${scheme}-${pane}.png`) });
  }
  await page.close();
}

mkdirSync(screenshots, { recursive: true });
const browser = await launch();
for (const [width, height] of SIZES) {
  for (const scheme of ["light", "dark"]) {
    for (const name of Object.keys(PAGES)) {
      await take(browser, name, width, height, scheme);
    }
  }
}
await browser.close();
