// The built page's data, in Node: `page/src` reads it as a browser does.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { runInThisContext } from "node:vm";

import { Template } from "../page/src/template.js";

/** The template of a folder with data.js and contents*.js, with all texts. */
export function loadTemplate(folder) {
  runInThisContext(readFileSync(join(folder, "data.js"), "utf8"));
  const data = globalThis.CONFIGURATOR;
  const template = new Template(data);
  for (const group of data.contents) {
    const file = group ? `contents-${group}.js` : "contents.js";
    runInThisContext(readFileSync(join(folder, file), "utf8"));
    template.add(group, globalThis.CONTENTS[group]);
  }
  return template;
}
