// node checks/commands.js FOLDER < ROWS: the commands for pairs of answers, in both shells.
// Each row is { version, before, after }; the version stands for the page's.

import { readFileSync } from "node:fs";

import { copyCommand, updateCommand } from "../page/src/commands.js";
import { loadTemplate } from "./load.js";

const STANDARD_INPUT = 0;
const template = loadTemplate(process.argv[2]);

function commands({ version, before, after }) {
  template.data.version = version;
  const complete = template.complete(after);
  return ["posix", "powershell"].map((shell) => {
    const update = updateCommand(template, template.complete(before), complete, shell);
    return [copyCommand(template, complete, shell), update];
  });
}

const rows = JSON.parse(readFileSync(STANDARD_INPUT, "utf8"));
console.log(JSON.stringify(rows.map(commands)));
