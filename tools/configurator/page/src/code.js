// The code of a file, and its difference from another version: side by side, or unified on a phone.

import { diffArrays } from "diff/lib/diff/array.js";
import hljs from "highlight.js/lib/core";
import bash from "highlight.js/lib/languages/bash";
import dockerfile from "highlight.js/lib/languages/dockerfile";
import ini from "highlight.js/lib/languages/ini";
import makefile from "highlight.js/lib/languages/makefile";
import markdown from "highlight.js/lib/languages/markdown";
import python from "highlight.js/lib/languages/python";
import yaml from "highlight.js/lib/languages/yaml";

import { byId, narrow, several, written } from "./dom.js";

const KNOWN = { bash, dockerfile, ini, makefile, markdown, python, yaml };
for (const [name, language] of Object.entries(KNOWN)) {
  hljs.registerLanguage(name, language);
}
// Languages by the end of a file's name.
const LANGUAGES = {
  py: "python",
  md: "markdown",
  yaml: "yaml",
  yml: "yaml",
  toml: "ini",
  sbatch: "bash",
  Makefile: "makefile",
  Dockerfile: "dockerfile",
};
const CONTEXT = 3; // equal lines around a difference
const FOLD = 4; // at least so many equal lines are folded

const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };
const escaped = (text) => text.replace(/[&<>]/g, (sign) => ESCAPES[sign]);
const row = (...cells) => `<tr>${cells.join("")}</tr>`;
const cell = (kind, html) => `<td class="${kind}">${html}</td>`;

/** The lines of a file as HTML. An element that spans lines is closed and opened again. */
export function highlighted(path, text) {
  if (!text) {
    return [];
  }
  const language = LANGUAGES[path.split("/").at(-1).split(".").at(-1)];
  const html = language
    ? hljs.highlight(text, { language, ignoreIllegals: true }).value
    : escaped(text);
  const open = [];
  const lines = html.split("\n").map((line) => {
    const before = open.join("");
    for (const [tag] of line.matchAll(/<span[^>]*>|<\/span>/g)) {
      if (tag === "</span>") {
        open.pop();
      } else {
        open.push(tag);
      }
    }
    return before + line + "</span>".repeat(open.length);
  });
  if (text.endsWith("\n")) {
    lines.pop();
  }
  return lines;
}

function show(html) {
  byId("code").innerHTML = html;
  written.nodes += byId("code").querySelectorAll("*").length;
}

/** Show a file. */
export function showFile(path, text) {
  const isWrapped = /\.(md|yml|yaml)$/.test(path) || narrow.matches;
  const rows = highlighted(path, text).map((line, index) => {
    return row(cell("number", index + 1), cell("", line));
  });
  show(`<table class="${isWrapped ? "wrap" : ""}"><tbody>${rows.join("")}</tbody></table>`);
}

/** Show how a file differs from another version, which has a title. */
export function showDifference(path, before, after, title) {
  const split = (text) => (text ? text.replace(/\n$/, "").split("\n") : []);
  const left = highlighted(path, before);
  const right = highlighted(path, after);
  const parts = diffArrays(split(before), split(after));
  const isWide = !narrow.matches;
  const writer = isWide ? new Sides(left, right) : new Unified(left, right);
  for (const [index, part] of parts.entries()) {
    if (part.added) {
      writer.add(part.value.length);
    } else if (part.removed) {
      writer.remove(part.value.length);
    } else {
      writer.keep(part.value.length, index > 0, index < parts.length - 1);
    }
  }
  writer.finish();
  const columns = '<col class="numbers"><col>'.repeat(isWide ? 2 : 1);
  show(
    `<table class="wrap ${isWide ? "sides" : ""}"><colgroup>${columns}</colgroup>` +
      `${isWide ? heads(title) : ""}<tbody>${writer.rows.join("")}</tbody></table>`,
  );
  for (const fold of byId("code").querySelectorAll(".fold")) {
    fold.querySelector("button").addEventListener("click", () => {
      fold.nextElementSibling.hidden = false;
      fold.remove();
    });
  }
}

function heads(title) {
  const head = (text) => `<th colspan="2" scope="colgroup">${escaped(text)}</th>`;
  return `<thead class="titles"><tr>${head(title)}${head("this project")}</tr></thead>`;
}

/** Collects the rows of a difference; `one` and `other` are the lines read so far. */
class Rows {
  constructor(left, right) {
    this.left = left;
    this.right = right;
    this.one = 0;
    this.other = 0;
    this.rows = [];
  }

  /** Equal lines, of which those far from a difference are folded. */
  keep(count, isAfterOne, isBeforeOne) {
    this.flush();
    const lines = [];
    for (let index = 0; index < count; index += 1) {
      lines.push(this.equal(this.one + index, this.other + index));
    }
    this.one += count;
    this.other += count;
    const first = isAfterOne ? CONTEXT : 0;
    const last = count - (isBeforeOne ? CONTEXT : 0);
    if (last - first <= FOLD) {
      this.rows.push(...lines);
      return;
    }
    const text = `… ${several(last - first, "equal line")}`;
    this.rows.push(...lines.slice(0, first));
    this.rows.push(`</tbody><tbody class="fold">${row(this.folded(text))}</tbody><tbody hidden>`);
    this.rows.push(...lines.slice(first, last), "</tbody><tbody>", ...lines.slice(last));
  }

  folded(text) {
    return `<td colspan="${this.columns}"><button type="button">${text}</button></td>`;
  }

  finish() {
    this.flush();
  }
}

class Sides extends Rows {
  columns = 4;
  removed = 0; // lines that wait for added ones beside them

  equal(one, other) {
    return row(...this.side(this.left, one, ""), ...this.side(this.right, other, ""));
  }

  remove(count) {
    this.removed += count;
  }

  add(count) {
    for (let index = 0; index < Math.max(count, this.removed); index += 1) {
      const left = index < this.removed ? this.one + index : null;
      const right = index < count ? this.other + index : null;
      const before = this.side(this.left, left, "minus");
      this.rows.push(row(...before, ...this.side(this.right, right, "plus")));
    }
    this.one += this.removed;
    this.other += count;
    this.removed = 0;
  }

  flush() {
    if (this.removed) {
      this.add(0);
    }
  }

  side(lines, index, kind) {
    if (index === null) {
      return [cell("number none", ""), cell("none", "")];
    }
    return [cell(`number ${kind}`, index + 1), cell(kind, lines[index] || " ")];
  }
}

class Unified extends Rows {
  columns = 2;

  equal(_, other) {
    return row(cell("number", other + 1), cell("", this.right[other] || " "));
  }

  remove(count) {
    this.push(this.left, this.one, count, "minus", "−");
    this.one += count;
  }

  add(count) {
    this.push(this.right, this.other, count, "plus", "+");
    this.other += count;
  }

  push(lines, start, count, kind, sign) {
    for (let index = start; index < start + count; index += 1) {
      const number = cell(`number ${kind}`, `${sign}${index + 1}`);
      this.rows.push(row(number, cell(kind, lines[index] || " ")));
    }
  }

  flush() {}
}
