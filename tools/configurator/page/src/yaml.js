// YAML as PyYAML writes it, and back: one level of texts, numbers and lists of words.

// What YAML would not read as a text.
const NOT_TEXT = new RegExp(
  [
    "^(?:yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF",
    "~|null|Null|NULL||<<|=",
    "[-+]?[0-9][0-9_]*\\.[0-9_]*(?:[eE][-+][0-9]+)?",
    "\\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?",
    "[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+\\.[0-9_]*",
    "[-+]?\\.(?:inf|Inf|INF)|\\.(?:nan|NaN|NAN)",
    "[-+]?0b[0-1_]+|[-+]?0[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+",
    "[-+]?[1-9][0-9_]*(?::[0-5]?[0-9])+",
    "[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt]|[ \\t]+)[0-9]{1,2}:[0-9]{2}:[0-9]{2}(?:\\.[0-9]*)?" +
      "(?:[ \\t]*(?:Z|[-+][0-9]{1,2}(?::[0-9]{2})?))?)$",
  ].join("|"),
);
const WIDTH = 80;
const INDENT = 4;

function isPlain(text) {
  if (NOT_TEXT.test(text) || /^(?:---|\.\.\.)/.test(text) || /^ | $/.test(text)) {
    return false;
  }
  return !/^[#,[\]{}&*!|>'"%@`]|^[-?:](?: |$)|:(?: |$)| #/.test(text);
}

/**
 * A text after `key:` or `-`, which end at `column`. A line is broken at a single space that comes
 * after column 80.
 */
function scalar(text, column) {
  const isQuoted = !isPlain(text);
  let result = isQuoted ? " '" : " ";
  column += result.length;
  const pieces = text.match(/ +|[^ ]+/g) ?? [];
  for (const [index, piece] of pieces.entries()) {
    const isInside = index > 0 && index < pieces.length - 1;
    if (piece === " " && column > WIDTH && (!isQuoted || isInside)) {
      result += `\n${" ".repeat(INDENT)}`;
      column = INDENT;
    } else {
      const written = isQuoted ? piece.replaceAll("'", "''") : piece;
      result += written;
      column += [...written].length;
    }
  }
  return isQuoted ? `${result}'` : result;
}

function line(key, value) {
  if (Array.isArray(value)) {
    const items = value.map((item) => `-${scalar(item, 1)}\n`);
    return value.length ? `${key}:\n${items.join("")}` : `${key}: []\n`;
  }
  if (typeof value === "number") {
    return `${key}: ${Number.isInteger(value) ? `${value}.0` : value}\n`;
  }
  return `${key}:${scalar(value, key.length + 1)}\n`;
}

/** Answers as Copier writes them into its file. */
export function yaml(answers) {
  const keys = Object.keys(answers).sort();
  return keys.map((key) => line(key, answers[key])).join("");
}

function unquoted(text) {
  const quoted = text.match(/^'(.*)'$/s);
  return quoted ? quoted[1].replaceAll("''", "'") : text.replace(/^"(.*)"$/s, "$1");
}

/** Texts and lists of texts from YAML as `yaml` writes it; other lines are left out. */
export function readYaml(text) {
  const result = {};
  let key = "";
  const lines = text.replaceAll("\r", "").replace(/\n {4,}(?! |-)/g, " "); // a long text goes on
  for (const row of lines.split("\n")) {
    const [, item] = row.match(/^ *- (.*)$/) ?? [];
    const [, name, value] = row.match(/^(\w+): *(.*?) *$/) ?? [];
    if (name) {
      key = name;
      const isList = value === "" || value === "[]";
      result[key] = isList ? [] : unquoted(value);
    } else if (item && Array.isArray(result[key])) {
      result[key].push(unquoted(item.trim()));
    }
  }
  return result;
}
