// Links: the answers that differ from the defaults, and the version of the template.

import { NAMES } from "./names.js";
import { readYaml } from "./yaml.js";

function words(given) {
  const result = new URLSearchParams();
  for (const [name, value] of Object.entries(given)) {
    result.set(name, Array.isArray(value) ? value.join(",") : value);
  }
  return result;
}

/** The hash of a page with these answers, compared with others, at a file. */
export function writeLink(template, { answers, other, path }) {
  const result = words(template.different(answers));
  if (other) {
    result.set("vs", words(template.different(template.complete(other))));
  }
  if (path) {
    result.set("file", path);
  }
  if (result.size) {
    result.set("v", template.data.version);
  }
  return result.toString();
}

/** Answers, those to compare with, a file, and what a person has to know. */
export function readLink(template, hash) {
  const parameters = new URLSearchParams(hash.replace(/^#/, ""));
  const notices = [];
  const version = parameters.get("v");
  if (version && version !== template.data.version) {
    notices.push(`The link was made for version ${version}; ${shown(template)}`);
  }
  const [answers, dropped] = answersOf(template, parameters, ["vs", "file", "v"]);
  notices.push(...dropped);
  let other = null;
  if (parameters.has("vs")) {
    other = answersOf(template, new URLSearchParams(parameters.get("vs")), [])[0];
  }
  return { answers, other, path: parameters.get("file") ?? "", notices };
}

function shown(template) {
  return `this page shows ${template.data.version}.`;
}

/** The answers of a .copier-answers.yml, and what a person has to know; null if it has none. */
export function readAnswers(template, text) {
  const { _commit: version, ...content } = readYaml(text);
  const stored = Object.entries(content).filter(([name]) => !name.startsWith("_"));
  if (!stored.some(([name]) => template.questions.has(name))) {
    return null;
  }
  const [answers, notices] = answersOf(template, stored, []);
  if (version && version !== template.data.version) {
    notices.unshift(`Your project has version ${version}; ${shown(template)}`);
  }
  return [answers, notices];
}

function answersOf(template, parameters, others) {
  const given = {};
  const unknown = [];
  for (const [name, value] of parameters) {
    const question = template.questions.get(name);
    if (question) {
      given[name] = parsed(question, value);
    } else if (!others.includes(name)) {
      unknown.push(`${name}: there is no such question.`);
    }
  }
  const [kept, dropped] = repaired(template, given);
  return [kept, [...unknown, ...dropped]];
}

function parsed({ name, multiple }, value) {
  if (multiple) {
    return [value].flat().join(",").split(",").filter(Boolean);
  }
  return name === "gpu_memory_gb" ? Number(value) : value;
}

/** Answers that are possible together, and what was dropped, with the reason. */
export function repaired(template, given) {
  const kept = { ...given };
  const dropped = dropUnknown(template, kept);
  for (;;) {
    const problems = template.problems(kept);
    const isDroppable = ([name]) => kept[name] !== undefined && !NAMES.includes(name);
    const problem = problems.find(isDroppable);
    if (!problem) {
      return [kept, dropped];
    }
    const [name, reason] = problem;
    const answers = template.complete(kept);
    if (!template.isAsked(name, answers)) {
      dropped.push(...forgotten(template, kept, name, reason));
      delete kept[name];
      continue;
    }
    const items = [kept[name]].flat();
    const item = items.find((value) => template.refusal(name, wrapped(kept[name], value), answers));
    dropped.push(`${name}: ${item ?? kept[name]} is dropped: ${reason}.`);
    if (Array.isArray(kept[name]) && item !== undefined) {
      kept[name] = kept[name].filter((value) => value !== item);
    } else {
      delete kept[name];
    }
  }
}

/** What to say of an answer to a question that is not asked; nothing if it is the default. */
function forgotten(template, kept, name, reason) {
  const usual = template.complete({ ...kept, [name]: undefined })[name];
  if (JSON.stringify(usual) === JSON.stringify(kept[name])) {
    return [];
  }
  return [`${name}: ${[kept[name]].flat().join(", ")} is dropped: ${reason}.`];
}

/**
 * Answers after a change, in which choices follow their default: without those that only the old
 * default had, with those that the new one adds.
 */
export function followed(template, before, given) {
  const result = { ...given };
  for (const { name, multiple } of template.data.questions) {
    if (!multiple || before[name] === undefined || before[name] !== given[name]) {
      continue;
    }
    const old = template.complete({ ...before, [name]: undefined })[name];
    const usual = template.complete({ ...given, [name]: undefined })[name];
    const added = given[name].filter((value) => !old.includes(value));
    const removed = old.filter((value) => !given[name].includes(value));
    const kept = usual.filter((value) => !removed.includes(value));
    result[name] = [...new Set([...kept, ...added])];
  }
  return result;
}

function wrapped(value, item) {
  return Array.isArray(value) ? [item] : item;
}

/** Drop values that no decision knows: an old choice, or a compute capability without a branch. */
function dropUnknown(template, kept) {
  const dropped = [];
  for (const [name, { choices, multiple }] of template.questions) {
    const values = knownValues(template, name, choices);
    if (kept[name] === undefined || values === null) {
      continue;
    }
    const unknown = [kept[name]].flat().filter((value) => !values.includes(value));
    for (const value of unknown) {
      dropped.push(`${name}: ${value} is dropped: this page does not offer it.`);
    }
    if (multiple) {
      kept[name] = kept[name].filter((value) => values.includes(value));
    } else if (unknown.length) {
      delete kept[name];
    }
  }
  return dropped;
}

function knownValues(template, name, choices) {
  if (name === "gpu_compute_capability") {
    return capabilities(template);
  }
  return choices ? choices.map(({ value }) => value) : null;
}

/** The compute capabilities of cards that are not listed. */
export function capabilities(template) {
  const [, cards] = template.data.atoms.find(([atom]) => atom === "gpu");
  const others = cards.filter((card) => card.startsWith("other "));
  return others.map((card) => card.slice("other ".length));
}
