// node checks/browser.js FOLDER: the page in Chromium, from the disk and from a server.
// Prints a line for each check, and exits with 1 if one fails. CHROMIUM names the browser.

import { createServer } from "node:http";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { extname, join, resolve } from "node:path";
import { gzipSync } from "node:zlib";

import axe from "axe-core";

import { launch } from "./chromium.js";

const folder = resolve(process.argv[2]);
const disk = `file://${join(folder, "index.html")}`;
const MOST_NODES_VISITED = 2_000; // of decisions, for one answer: about three times what it takes
const MOST_NODES_WRITTEN = 2_000; // of the document, for one answer
const PATIENCE = 300_000; // milliseconds, for a machine that does other things
const FIRST_VIEW = 330_000; // compressed bytes
const EVERYTHING = 600_000; // with the texts of all workloads
const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css" };

let failed = 0;
const noise = []; // what the console says
const asked = new Set(); // origins of requests

function check(name, isGood, more = "") {
  failed += isGood ? 0 : 1;
  console.log(isGood ? "ok  " : "FAIL", name, isGood ? "" : more);
}

const browser = await launch();

async function open(address, { width = 1280, scheme = "light" } = {}) {
  const page = await browser.newPage();
  page.setDefaultTimeout(PATIENCE);
  page.on("console", (message) => noise.push(message.text()));
  page.on("pageerror", (error) => noise.push(error.message));
  page.on("request", (request) => asked.add(request.url()));
  await page.setViewport({ width, height: width < 500 ? 844 : 900, isMobile: width < 500 });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  await page.goto(address);
  await isShown(page);
  return page;
}

const isShown = (page) => page.waitForFunction("document.querySelector('#code table')");
const text = (page, id) => page.$eval(id, (element) => element.textContent);
const press = (page, id) => page.$eval(id, (element) => element.click());
const focused = (page, script) => page.evaluate(`document.activeElement.${script}`);

/** Wait until the files of the chosen workload have loaded. */
async function settled(page) {
  await page.waitForFunction("configurator.template.isReady(configurator.state.answers)");
  await page.evaluate(() => new Promise((done) => setTimeout(done, 50)));
}

async function answers() {
  const page = await open(disk);
  check("it opens from the disk", (await text(page, "#path")) === "src/my_training/train.py");
  await page.select("#gpu", "v100");
  const isOff = await page.$eval("#precision-bf16", (input) => input.disabled);
  check("bf16 is off on a V100", isOff);
  const reason = await text(page, "#precision-bf16-why");
  check("with the reason", reason === "V100 has no bf16; choose fp16", reason);
  await page.select("#gpu", "h100");
  await press(page, "#precision-bf16");
  await page.select("#gpu", "v100");
  const notice = await text(page, "#notice");
  const expected = "precision: bf16 is dropped: V100 has no bf16; choose fp16.";
  check("an answer that becomes impossible is dropped aloud", notice === expected, notice);
  check("the address has the answers", page.url().includes("gpu=v100"), page.url());
  await page.goBack();
  const before = await page.$eval("#gpu", (select) => select.value);
  check("a step back takes an answer back", before === "h100", before);
  await page.goForward();
  const after = await page.$eval("#gpu", (select) => select.value);
  check("a step forward gives it again", after === "v100", after);
  await page.select("#shell", "powershell");
  await page.type("#project_name", " 'x");
  const command = await text(page, "#command");
  check("PowerShell doubles a quote", command.includes("'project_name=my-training ''x'"), command);
  await page.close();
}

async function keyboard() {
  const page = await open(disk);
  const tabTo = async (condition, most) => {
    for (let index = 0; index < most && !(await focused(page, condition)); index += 1) {
      await page.keyboard.press("Tab");
    }
  };
  await tabTo("name === 'workload'", 40);
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("ArrowDown");
  await settled(page);
  const command = await text(page, "#command");
  check("arrow keys choose a workload", command.includes("workload=windows"), command);
  await tabTo("dataset.path === 'README.md'", 200);
  await page.keyboard.press("Enter");
  check("a file opens by keyboard", (await text(page, "#path")) === "README.md");
  check("the focus stays on the file", (await focused(page, "dataset.path")) === "README.md");
  await page.close();
}

async function comparison() {
  const page = await open(disk);
  await press(page, "#pin");
  await press(page, "#layout-script");
  await settled(page);
  const title = await text(page, "#files-title");
  check("the tree shows what differs", /^\+\d+ −\d+ ~\d+ files$/.test(title), title);
  const update = await text(page, "#update-command");
  check("an update's command", update.endsWith("-r :current: -d layout=script"), update);
  check("two sides", (await page.$$("#code table.sides")).length === 1);
  await press(page, "#swap");
  const command = await text(page, "#command");
  check("swapped", !command.includes("layout=script"), command);
  await page.select("#compare", "a table on a CPU");
  await settled(page);
  const changed = await page.$$("#code .plus, #code .minus");
  check("another workload to compare with", changed.length > 0);
  await page.close();
}

/** What one answer does to others: those that it hides or brings are told, or follow it. */
async function consequences() {
  const page = await open(`${disk}#workload=llm&distributed=ddp&tracker=wandb&extras=ema`);
  await press(page, "#layout-script");
  await settled(page);
  const notice = await text(page, "#notice");
  const lost = ["distributed: ddp is dropped", "tracker: wandb is", "extras: ema is"];
  const untold = lost.filter((words) => !notice.includes(words));
  check("answers that a script has no question for are dropped aloud", untold.length === 0, notice);
  await press(page, "#layout-package");
  await press(page, "#extras-check");
  await press(page, "#workload-chat");
  const chosen = () => page.evaluate("configurator.state.answers.extras.join()");
  check("a workload brings its usual extras", (await chosen()) === "check,lora,export");
  await press(page, "#extras-lora");
  await press(page, "#workload-llm");
  check("and takes them away again", (await chosen()) === "check", await chosen());
  await page.close();
}

const OWN = `# Copier writes this file.
_commit: v0.0.1
_src_path: gh:org/fasttrain-template
extras:
- check
- 'export'
gpu: cpu
package_name: bird_song
project_description: 'It''s a long text, which ends
    here'
project_name: 'Bird: song'
workload: tabular
`;

async function ownProject() {
  const page = await open(`${disk}#project_name=theirs&workload=tabular&gpu=t4&extras=ema`);
  const paste = async (content) => {
    await press(page, "#own");
    await page.$eval(
      "#own-text",
      (area, value) => {
        area.value = value;
      },
      content,
    );
    await press(page, "#own-dialog .strong");
  };
  await paste("nothing: of use");
  await page.waitForFunction("document.getElementById('notice').textContent");
  const refusal = await text(page, "#notice");
  check("another file is no project", refusal.includes("none of the answers"), refusal);
  await paste(OWN);
  await page.waitForFunction("!document.getElementById('update').hidden");
  const update = await text(page, "#update-command");
  const expected = "copier update --defaults -r :current: -d gpu=t4 -d 'extras=[ema]'";
  check("an update of one's own project to answers of a link", update === expected, update);
  const command = await text(page, "#command");
  const names = ["'project_name=Bird: song'", "a long text, which ends here'", "bird-song"];
  const missing = names.filter((name) => !command.includes(name));
  check("its names stay", missing.length === 0, command);
  check("its version is told", (await text(page, "#notice")).includes("version v0.0.1"));
  await page.setViewport({ width: 390, height: 844, isMobile: true });
  await press(page, "#tabs [data-pane=files]");
  const wider = await page.evaluate("document.documentElement.scrollWidth - 390");
  check("a comparison is not wider than a phone", wider <= 0, wider);
  await page.setViewport({ width: 1280, height: 900 });
  await isShown(page);
  await page.evaluate("location.hash = ''");
  await page.waitForFunction("configurator.state.answers.workload === 'timeseries'");
  await paste(OWN);
  await page.waitForFunction("!document.getElementById('update').hidden");
  const equal = await text(page, "#update-command");
  check("without a choice, both sides are one's own", equal.startsWith("# the answers"), equal);
  await page.close();
}

async function faults() {
  const page = await open(disk);
  await page.$eval("#names", (details) => {
    details.open = true;
  });
  await page.type("#package_name", "torch");
  const error = await text(page, "#package_name-error");
  check("a wrong package name is told", error === "hides a dependency; rename it", error);
  check("and not taken", await page.$eval("#download", (button) => button.disabled));
  await page.close();
  const odd = "v=v0.0.1&workload=audio&colour=red&extras=x,check";
  const card = "gpu=other&gpu_compute_capability=6.6";
  const linked = await open(`${disk}#${odd}&${card}`);
  const notice = await text(linked, "#notice");
  const words = ["version v0.0.1", "workload: audio", "colour: there is no", "6.6", "extras: x is"];
  const missing = words.filter((word) => !notice.includes(word));
  check("a link with unknown answers opens with a notice", missing.length === 0, notice);
  check("and keeps the others", (await text(linked, "#command")).includes("check"));
  await linked.close();
}

async function copying() {
  const page = await open(disk);
  await page.evaluate(() => {
    globalThis.copied = [];
    document.execCommand = () => globalThis.copied.push(document.activeElement.value);
    navigator.clipboard.writeText = () => Promise.reject(new Error("closed"));
  });
  for (const id of ["#copy-command", "#link", "#copy-file"]) {
    await press(page, id);
  }
  await page.waitForFunction("copied.length === 3");
  const [command, link, file] = await page.evaluate("copied");
  check("the command is copied", command.startsWith("copier copy --defaults"), command);
  check("the link is copied", link.startsWith("file://"), link);
  check("the file is copied", file.includes("def train("), file.slice(0, 80));
  const size = await page.evaluate("configurator.zip().length");
  check("the zip has content", size > 50_000, size);
  await page.close();
}

async function work() {
  const page = await open(disk);
  await press(page, "#workload-llm");
  await settled(page);
  const [visited, written] = await page.evaluate(() => {
    const { template, written: nodes } = globalThis.configurator;
    const before = [template.visited, nodes.nodes];
    document.getElementById("precision-bf16").click();
    return [template.visited - before[0], nodes.nodes - before[1]];
  });
  console.log(`     an answer visits ${visited} nodes and writes ${written}`);
  check("an answer visits few nodes", visited > 0 && visited < MOST_NODES_VISITED, visited);
  check("and writes few", written > 0 && written < MOST_NODES_WRITTEN, written);
  await page.close();
}

async function looks() {
  for (const width of [1280, 390]) {
    for (const scheme of ["light", "dark"]) {
      const page = await open(disk, { width, scheme });
      const name = `${width} px, ${scheme}`;
      const wider = await page.evaluate("document.documentElement.scrollWidth - innerWidth");
      check(`nothing is wider than the screen: ${name}`, wider <= 0, wider);
      await page.evaluate(axe.source);
      const { violations } = await page.evaluate("axe.run({ preload: false })");
      const serious = violations.filter(({ impact }) => ["serious", "critical"].includes(impact));
      const found = serious.map(({ id, nodes }) => `${id}: ${nodes[0].html.slice(0, 90)}`);
      check(`no serious finding of axe: ${name}`, found.length === 0, found.join("; "));
      await page.close();
    }
  }
}

async function served() {
  let size = 0;
  const server = createServer((request, response) => {
    const path = join(folder, new URL(request.url, "http://x").pathname);
    if (!existsSync(path)) {
      response.writeHead(404).end();
      return;
    }
    const content = gzipSync(readFileSync(path), { level: 9 });
    size += content.length;
    const headers = { "content-type": TYPES[extname(path)], "content-encoding": "gzip" };
    response.writeHead(200, headers).end(content);
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  const page = await open(`http://127.0.0.1:${server.address().port}/index.html`);
  console.log(`     the first view is ${Math.round(size / 1000)} kB`);
  check("the first view is small", size < FIRST_VIEW, size);
  const first = size;
  await press(page, "#workload-llm");
  await settled(page);
  check("a workload's texts load when it is chosen", size > first);
  const names = readdirSync(folder).filter((name) => extname(name) in TYPES);
  const contents = names.map((name) => readFileSync(join(folder, name)));
  const sizes = contents.map((content) => gzipSync(content, { level: 9 }).length);
  const all = sizes.reduce((one, other) => one + other);
  console.log(`     all files are ${Math.round(all / 1000)} kB`);
  check("all files are small", all < EVERYTHING, all);
  await page.close();
  server.close();
}

const parts = [answers, keyboard, comparison, consequences, ownProject, faults, copying, work];
for (const part of [...parts, looks, served]) {
  await part();
}
const own = ["file:", "data:", "blob:", "http://127.0.0.1"];
const others = [...asked].filter((origin) => !own.some((start) => origin.startsWith(start)));
check("no other host is asked", others.length === 0, others.join(" "));
check("the console is silent", noise.length === 0, noise.slice(0, 3).join(" | "));
await browser.close();
process.exitCode = failed ? 1 : 0;
