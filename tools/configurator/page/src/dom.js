// Small helpers for the page.

export const byId = (id) => document.getElementById(id);
export const narrow = matchMedia("(max-width: 50rem)");

const number = new Intl.NumberFormat("en");
export const formatted = (count) => number.format(count);
export const several = (count, word) => `${formatted(count)} ${word}${count === 1 ? "" : "s"}`;

/** Nodes that the page has made since it was opened, for the tests. */
export const written = { nodes: 0 };

/** Make an element with properties or attributes, and children. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) {
      element[name] = value;
    } else {
      element.setAttribute(name, value);
    }
  }
  element.append(...children);
  written.nodes += 1;
  return element;
}

/** A text whose `words in backquotes` are code. */
export function withCode(text) {
  const parts = text.trim().replaceAll("\n", " ").split("`");
  return parts.map((part, index) => (index % 2 ? make("code", { textContent: part }) : part));
}

let timer;
/** Tell what was done, for a few seconds. */
export function say(text) {
  byId("said").textContent = text;
  clearTimeout(timer);
  timer = setTimeout(() => {
    byId("said").textContent = "";
  }, 6000);
}

/** Copy a text. The clipboard is closed to pages from the disk in some browsers. */
export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = make("textarea", { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  say(`Copied the ${what}.`);
}
