// The form of answers.

import { byId, make, withCode } from "./dom.js";
import { capabilities } from "./links.js";
import { packageName } from "./names.js";

const RARE = ["package_name", "project_description"]; // behind "Package name and description"
const inputs = new Map(); // of each question, or of each choice as `question.choice`

function titleOf(name) {
  const words = name.replaceAll("_", " ").replace(/^gpu/, "GPU").replace(/gb$/, "in GB");
  return words[0].toUpperCase() + words.slice(1);
}

/** Build the form. `onChange` gets the changed input. */
export function buildForm(template, onChange) {
  const rare = make("details", { id: "names" });
  rare.append(make("summary", { textContent: "Package name and description" }));
  for (const question of template.data.questions) {
    const { name, choices } = question;
    const hasButtons = choices && name !== "gpu";
    const field = hasButtons ? choiceField(question) : plainField(template, question);
    if (RARE.includes(name)) {
      rare.append(field);
    } else {
      byId("form").append(field);
    }
    if (name === "project_name") {
      byId("form").append(rare);
    }
  }
  byId("form").addEventListener("submit", (event) => event.preventDefault());
  byId("form").addEventListener("input", ({ target }) => onChange(target));
}

function choiceField({ name, help, choices, multiple }) {
  const set = make("fieldset", { id: `${name}-set` });
  set.append(make("legend", { textContent: titleOf(name) }));
  set.append(make("p", { className: "help" }, ...withCode(help)));
  set.append(make("p", { className: "error", id: `${name}-error` }));
  for (const { value, label } of choices) {
    const [, before, after] = label.match(/^(.*?): (.*)$/s) ?? [null, label, ""];
    const id = `${name}-${value}`;
    const input = make("input", {
      type: multiple ? "checkbox" : "radio",
      name,
      value,
      id,
      "aria-describedby": `${id}-why`,
    });
    const why = make("em", { id: `${id}-why` });
    const text = make("span", {}, make("b", { textContent: before }), " ", after);
    set.append(make("label", { className: "choice" }, input, text, why));
    inputs.set(`${name}.${value}`, { input, why });
  }
  return set;
}

function plainField(template, { name, help, choices }) {
  const input = inputFor(template, name, choices);
  input.id = name;
  input.setAttribute("aria-describedby", `${name}-help ${name}-error`);
  inputs.set(name, { input });
  return make(
    "div",
    { className: "field", id: `${name}-set` },
    make("label", { htmlFor: name, textContent: titleOf(name) }),
    make("p", { className: "help", id: `${name}-help` }, ...withCode(help)),
    input,
    make("p", { className: "error", id: `${name}-error` }),
  );
}

function inputFor(template, name, choices) {
  if (name === "gpu") {
    return cardSelect(template, choices);
  }
  if (name === "gpu_compute_capability") {
    const values = capabilities(template).sort((one, other) => one - other);
    return make("select", {}, ...values.map((value) => optionOf(value, value)));
  }
  if (name === "gpu_memory_gb") {
    return make("input", { type: "number", min: "0.5", max: "9999", step: "any" });
  }
  const isSentence = name === "project_description";
  return make("input", { type: "text", maxLength: 300, spellcheck: isSentence });
}

function cardSelect(template, choices) {
  const labels = new Map(choices.map(({ value, label }) => [value, label]));
  const options = (values) => values.map((value) => optionOf(value, labels.get(value)));
  const select = make("select", {}, ...options(["auto", "cpu", "other"]));
  for (const [label, cards] of template.data.groups) {
    select.append(make("optgroup", { label }, ...options(cards)));
  }
  return select;
}

/** A choice of a list. */
export function optionOf(value, text) {
  return make("option", { value, textContent: text });
}

/** Show answers, and what is impossible with its reason. */
export function showForm(template, { given, answers, problem }) {
  for (const { name, choices, multiple } of template.data.questions) {
    const isAsked = template.isAsked(name, answers);
    const reason = problem?.[0] === name ? problem[1] : "";
    byId(`${name}-error`).textContent = reason;
    if (choices && name !== "gpu") {
      showChoices(template, { name, choices, multiple, isAsked }, answers);
    } else {
      byId(`${name}-set`).hidden = !isAsked;
      showPlain(template, name, given, answers, reason);
    }
  }
}

function showPlain(template, name, given, answers, reason) {
  const { input } = inputs.get(name);
  let value = given[name] ?? answers[name];
  if (name === "package_name") {
    input.placeholder = packageName(answers.project_name, template.data.reserved);
    value = given.package_name ?? "";
  }
  // What is being typed stays as it is.
  if (document.activeElement !== input || input.tagName === "SELECT") {
    input.value = String(value);
  }
  input.setAttribute("aria-invalid", String(reason !== ""));
  if (reason && RARE.includes(name)) {
    byId("names").open = true;
  }
}

function showChoices(template, { name, choices, multiple, isAsked }, answers) {
  byId(`${name}-set`).classList.toggle("unasked", !isAsked);
  if (!isAsked) {
    byId(`${name}-error`).textContent = "is asked only if layout is package";
  }
  for (const { value } of choices) {
    const { input, why } = inputs.get(`${name}.${value}`);
    const item = multiple ? [value] : value;
    const reason = isAsked ? template.refusal(name, item, answers) : "";
    input.checked = multiple ? answers[name].includes(value) : answers[name] === value;
    input.disabled = reason !== "" || !isAsked;
    why.textContent = reason;
    input.parentElement.classList.toggle("off", reason !== "");
  }
}
