// The page: a form of answers, the files of that project, a comparison, a command, a zip.

import { zip } from "./archive.js";
import { showDifference, showFile } from "./code.js";
import { folderOf } from "./commands.js";
import { byId, copy, narrow, say, several, written } from "./dom.js";
import { differences, firstDifference, markCurrent, showTree, usualPath } from "./files.js";
import { buildForm, showForm } from "./form.js";
import { followed, readAnswers, readLink, repaired, writeLink } from "./links.js";
import { NAMES } from "./names.js";
import { presets as presetsOf } from "./presets.js";
import { download, fillPresets, nameOf, showTake } from "./take.js";
import { Template } from "./template.js";
import { followTheme } from "./theme.js";
import { sizeOf } from "./tokens.js";

const template = new Template(globalThis.CONFIGURATOR);
const KEPT = "Kept. Change answers to see the difference.";
const presets = {};
for (const [name, answers] of Object.entries(presetsOf(template))) {
  presets[name] = repaired(template, answers)[0];
}

const state = {
  given: {}, // what the person chose
  answers: {}, // all answers
  problem: undefined, // [question, reason]
  other: null, // the answers to compare with
  files: new Map(),
  others: null,
  status: new Map(),
  path: "",
  onlyChanges: true,
};

// ---- texts of files, which load when their workload or the first extra is chosen

const loading = new Map();

function load(group) {
  if (!loading.has(group)) {
    const script = document.createElement("script");
    script.src = group ? `contents-${group}.js` : "contents.js";
    const loaded = new Promise((resolve, reject) => {
      script.addEventListener("load", resolve);
      script.addEventListener("error", reject);
    });
    document.head.append(script);
    loading.set(
      group,
      loaded.then(() => template.add(group, globalThis.CONTENTS[group])),
    );
  }
  return loading.get(group);
}

/** Load what these answers need; true if something was missing. */
function loadMissing() {
  const needed = [state.answers, ...(state.other ? [template.complete(state.other)] : [])];
  const groups = needed.flatMap((answers) => template.groupsOf(answers));
  const missing = groups.filter((group) => !template.loaded.has(group));
  if (missing.length === 0) {
    return false;
  }
  Promise.all(missing.map(load)).then(showProject, () => {
    byId("summary").textContent = "The files could not be loaded. Reload the page.";
  });
  return true;
}

// ---- what is shown

function update() {
  const [problem] = template.problems(state.given);
  state.problem = problem;
  state.answers = template.complete(state.given);
  showForm(template, state);
  if (problem) {
    // The files are those without the text that is wrong. They cannot be taken.
    state.answers = template.complete(withoutProblems(state.given));
  }
  if (loadMissing()) {
    byId("summary").textContent = "The files are loading …";
  } else {
    showProject();
  }
}

function withoutProblems(given) {
  const usable = { ...given };
  for (const [name] of template.problems(given)) {
    delete usable[name];
  }
  // A package name that follows from the project's may be impossible, too.
  return template.problems(usable).length ? { ...usable, package_name: "my_training" } : usable;
}

function showProject() {
  if (!template.isReady(state.answers)) {
    return; // another workload was chosen meanwhile
  }
  if (state.other && !template.isReady(template.complete(state.other))) {
    return;
  }
  state.files = template.render(state.answers);
  state.others = state.other && template.render(state.other);
  state.status = differences(state.files, state.others);
  if (!state.status.has(state.path)) {
    state.path = usualPath(state.files);
  }
  if (state.others && state.onlyChanges && state.status.get(state.path) === "same") {
    state.path = firstDifference(state.status) ?? state.path;
  }
  showTake(template, state, presets, byId("shell").value);
  showTree(state);
  showCode();
}

function showCode() {
  const { path, files, others, status } = state;
  const here = files.get(path);
  const there = others?.get(path);
  const { lines, tokens } = sizeOf(path, (here ?? there).text);
  byId("path").textContent = path;
  const size = several(lines, "line");
  byId("size").textContent = tokens === null ? size : `${size}, ${several(tokens, "token")}`;
  markCurrent(path);
  if (others && status.get(path) !== "same") {
    const title = nameOf(template, state.other, presets);
    showDifference(path, there?.text ?? "", here?.text ?? "", title);
  } else {
    showFile(path, here.text);
  }
}

// ---- the address: each answer is a step back

function address() {
  const isUsual = state.files.size && state.path === usualPath(state.files);
  const hash = writeLink(template, { ...state, path: isUsual ? "" : state.path });
  return hash ? `#${hash}` : location.pathname + location.search;
}

/** Show a change of answers, as a step of the browser's history. */
function step() {
  update();
  history.pushState(null, "", address());
}

function readAddress() {
  const { answers, other, path, notices } = readLink(template, location.hash);
  state.given = answers;
  state.other = other;
  state.path = path;
  byId("notice").textContent = notices.join(" ");
  byId("preset").value = "";
  update();
}

// ---- what a person does

function change(target) {
  const name = target.name || target.id;
  const given = { ...state.given };
  if (target.type === "checkbox") {
    const others = state.answers[name].filter((value) => value !== target.value);
    given[name] = target.checked ? [...others, target.value] : others;
  } else {
    given[name] = target.type === "number" ? target.valueAsNumber || 0 : target.value;
  }
  if (name === "package_name" && !target.value) {
    delete given[name];
  }
  if (name === "gpu" && target.value !== "other") {
    delete given.gpu_compute_capability;
    delete given.gpu_memory_gb;
  }
  // Answers that another answer makes impossible are dropped aloud.
  const [kept, dropped] = repaired(template, followed(template, state.given, given));
  if (target.type === "number" && !(name in kept)) {
    kept[name] = given[name]; // shown as an error beside the field, while it is typed
  }
  state.given = kept;
  byId("notice").textContent = dropped.join(" ");
  byId("preset").value = "";
  step();
}

/** These answers, for the project that has these names. */
function named(answers, names) {
  const result = { ...answers };
  for (const name of NAMES) {
    delete result[name];
    if (name in names) {
      result[name] = names[name];
    }
  }
  return result;
}

/** Compare with the project that a person has. The names that it has stay. */
function compareOwn(text) {
  const read = readAnswers(template, text);
  if (!read) {
    byId("notice").textContent = "This is no .copier-answers.yml: it has none of the answers.";
    return;
  }
  const [own, notices] = read;
  const chosen = Object.keys(template.different(state.answers));
  const isStart = chosen.every((name) => NAMES.includes(name));
  state.other = own;
  state.given = isStart ? { ...own } : repaired(template, named(state.given, own))[0];
  byId("notice").textContent = notices.join(" ");
  byId("preset").value = "";
  step();
  say(isStart ? KEPT : "Your project is on the left, with its names on both sides.");
}

function showPane(name) {
  document.body.dataset.pane = name;
  for (const button of byId("tabs").children) {
    button.setAttribute("aria-pressed", String(button.dataset.pane === name));
  }
  if (narrow.matches) {
    scrollTo(0, 0);
  }
}

function openFile(button) {
  state.path = button.dataset.path;
  showCode();
  byId("code").scrollTop = 0;
  history.replaceState(null, "", address());
  if (narrow.matches) {
    showPane("code");
  }
}

function listenToComparison() {
  byId("compare").addEventListener("change", ({ target }) => {
    if (target.value !== "kept") {
      state.other = target.value ? named(presets[target.value], state.given) : null;
      step();
    }
  });
  byId("pin").addEventListener("click", () => {
    state.other = template.different(state.answers);
    step();
    say(KEPT);
  });
  byId("own").addEventListener("click", () => byId("own-dialog").showModal());
  byId("own-dialog").addEventListener("close", ({ target }) => {
    if (target.returnValue === "compare") {
      compareOwn(byId("own-text").value);
    }
    target.returnValue = "";
  });
  byId("swap").addEventListener("click", () => {
    const before = template.different(state.answers);
    state.given = state.other;
    state.other = before;
    step();
  });
  byId("only-changes").addEventListener("change", ({ target }) => {
    state.onlyChanges = target.checked;
    showProject();
  });
}

function listen() {
  byId("tabs").addEventListener("click", ({ target }) => {
    if (target.dataset.pane) {
      showPane(target.dataset.pane);
    }
  });
  byId("preset").addEventListener("change", ({ target }) => {
    if (target.value) {
      state.given = named(presets[target.value], state.given);
      byId("notice").textContent = "";
      step();
    }
  });
  listenToComparison();
  byId("tree").addEventListener("click", ({ target }) => {
    const button = target.closest("button");
    if (button) {
      openFile(button);
    }
  });
  byId("shell").addEventListener("change", showProject);
  byId("download").addEventListener("click", () => download(state.answers, state.files));
  byId("link").addEventListener("click", () => copy(location.href, "link"));
  byId("copy-file").addEventListener("click", () => {
    const file = state.files.get(state.path) ?? state.others.get(state.path);
    copy(file.text, "file");
  });
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", () => copy(byId(button.dataset.copy).textContent, "command"));
  }
  addEventListener("popstate", readAddress);
  narrow.addEventListener("change", showProject);
}

followTheme();
buildForm(template, change);
byId("version").textContent = `fasttrain-template ${template.data.version}`;
fillPresets(byId("preset"), "a preset …", presets);
listen();
showPane("answers");
byId("shell").value = /\bWin/.test(navigator.platform) ? "powershell" : "posix";
readAddress();

// What the tests read: the state, the bytes of the zip, and counters of work.
globalThis.configurator = {
  state,
  template,
  written,
  zip: () => zip(state.files, folderOf(state.answers)),
};
