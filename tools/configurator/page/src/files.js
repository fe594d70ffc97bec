// The tree of files, and how each differs from those of a compared project.

import { byId, formatted, make, several } from "./dom.js";
import { sizeOf } from "./tokens.js";

const SIGNS = { added: "+ ", removed: "− ", changed: "~ ", same: "" };
const closed = new Set(); // folders that the person closed

/** How each file differs: added, removed, changed or same. */
export function differences(files, others) {
  const paths = new Set([...files.keys(), ...(others?.keys() ?? [])]);
  const kinds = [...paths].sort().map((path) => {
    return [path, difference(files.get(path), others, others?.get(path))];
  });
  return new Map(kinds);
}

function difference(here, others, there) {
  if (!others || here?.text === there?.text) {
    return "same";
  }
  if (!there) {
    return "added";
  }
  return here ? "changed" : "removed";
}

/** Files, lines and tokens of a project; tokens without tests. */
export function totals(files) {
  const all = { files: files.size, lines: 0, tokens: 0 };
  for (const [path, { text }] of files) {
    const { lines, tokens } = sizeOf(path, text);
    all.lines += lines;
    if (!/(^|\/)(tests\/|test_)/.test(path)) {
      all.tokens += tokens ?? 0;
    }
  }
  return all;
}

/** Show the tree. `shown` has the paths to show, in order, with their kinds. */
export function showTree({ files, others, status, path, onlyChanges }) {
  const isFiltered = others !== null && onlyChanges;
  const root = emptyFolder("");
  for (const [name, kind] of status) {
    if (!isFiltered || kind !== "same") {
      insert(root, name, kind);
    }
  }
  const isEmpty = root.folders.size === 0 && root.files.length === 0;
  const equal = make("p", { textContent: "The two projects are equal." });
  const top = byId("tree").scrollTop;
  const sizes = (name) => sizeOf(name, (files.get(name) ?? others.get(name)).text);
  byId("tree").replaceChildren(isEmpty ? equal : list(root, sizes, path));
  byId("tree").scrollTop = top;
  showTitle(files, others, status);
  byId("only").hidden = others === null;
  byId("only-changes").checked = onlyChanges;
}

function showTitle(files, others, status) {
  const count = (kind) => [...status.values()].filter((one) => one === kind).length;
  let title = several(files.size, "file");
  if (others) {
    title = `+${count("added")} −${count("removed")} ~${count("changed")} files`;
  }
  byId("files-title").textContent = title;
  document.querySelector("#tabs [data-pane=files]").textContent =
    `Project · ${formatted(files.size)}`;
}

function emptyFolder(path) {
  return { path, folders: new Map(), files: [] };
}

function insert(root, path, kind) {
  const parts = path.split("/");
  const name = parts.pop();
  let folder = root;
  for (const [depth, part] of parts.entries()) {
    if (!folder.folders.has(part)) {
      folder.folders.set(part, emptyFolder(parts.slice(0, depth + 1).join("/")));
    }
    folder = folder.folders.get(part);
  }
  folder.files.push({ path, name, kind });
}

function list(folder, sizes, current) {
  const items = [];
  for (const [name, inner] of folder.folders) {
    items.push(make("li", {}, folderItem(name, inner, sizes, current)));
  }
  for (const file of folder.files) {
    items.push(make("li", {}, fileButton(file, sizes(file.path), current)));
  }
  return make("ul", {}, ...items);
}

function folderItem(name, folder, sizes, current) {
  // A folder with nothing but one folder is shown in one line with it.
  while (folder.folders.size === 1 && folder.files.length === 0) {
    const [[more, only]] = folder.folders;
    name = `${name}/${more}`;
    folder = only;
  }
  const { path } = folder;
  const details = make("details", { open: !closed.has(path) });
  details.append(make("summary", { textContent: `${name}/` }), list(folder, sizes, current));
  details.addEventListener("toggle", () => {
    if (details.open) {
      closed.delete(path);
    } else {
      closed.add(path);
    }
  });
  return details;
}

function fileButton({ path, name, kind }, { lines, tokens }, current) {
  const size = several(lines, "line");
  const title = tokens === null ? size : `${size}, ${several(tokens, "token")}`;
  const heard = (text) => make("span", { className: "heard", textContent: text });
  const change = kind === "same" ? "" : ` ${kind}`;
  const button = make(
    "button",
    { type: "button" },
    make("span", { className: `name ${kind}` }, SIGNS[kind] + name, heard(change)),
    make("span", { className: "count", title }, formatted(lines), heard(" lines")),
  );
  button.dataset.path = path;
  if (path === current) {
    button.setAttribute("aria-current", "true");
  }
  return button;
}

/** Mark the shown file in the tree. */
export function markCurrent(path) {
  for (const button of byId("tree").querySelectorAll("button")) {
    if (button.dataset.path === path) {
      button.setAttribute("aria-current", "true");
    } else {
      button.removeAttribute("aria-current");
    }
  }
}

/** The file that is shown first: the training loop. */
export function usualPath(files) {
  const loops = [...files.keys()].filter((path) => path.split("/").at(-1) === "train.py");
  loops.sort((one, other) => one.length - other.length);
  return loops[0] ?? files.keys().next().value;
}

/** The file that a comparison shows first: the loop if it differs, or the first difference. */
export function firstDifference(status) {
  const changed = [...status].filter(([, kind]) => kind !== "same");
  const loop = changed.find(([path, kind]) => kind === "changed" && path.endsWith("train.py"));
  return (loop ?? changed[0])?.[0];
}
