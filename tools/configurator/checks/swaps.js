// node checks/swaps.js FOLDER COUNT < ROWS: two branches of a decision change places, COUNT times.
// Prints for each whether a project of the rows becomes another one.

import { readFileSync } from "node:fs";

import { loadTemplate } from "./load.js";

const STANDARD_INPUT = 0;
const JOIN = "+";
const [folder, count] = process.argv.slice(2);
const template = loadTemplate(folder);
const rows = JSON.parse(readFileSync(STANDARD_INPUT, "utf8"));
const { nodes } = template.data;

/** The nodes below the files' paths and contents; those of the questions are not rendered. */
function rendered() {
  const found = new Set();
  const visit = (tree) => {
    if (typeof tree === "number" && tree < 0 && !found.has(tree)) {
      found.add(tree);
      nodes[-1 - tree][1].forEach(visit);
    }
  };
  for (const { path, content } of template.data.files) {
    visit(path);
    visit(content);
  }
  const decisions = [...found].map((tree) => nodes[-1 - tree]);
  return decisions.filter(([kind, branches]) => kind !== JOIN && new Set(branches).size > 1);
}

function render(row) {
  try {
    return JSON.stringify([...template.render(row)]);
  } catch (error) {
    return String(error);
  }
}

const before = rows.map(render);
const decisions = rendered();
const results = [];
for (let number = 0; number < Number(count); number += 1) {
  const [atom, branches] = decisions[Math.floor((number * decisions.length) / Number(count))];
  const first = number % branches.length;
  const second = branches.findIndex((branch) => branch !== branches[first]);
  [branches[first], branches[second]] = [branches[second], branches[first]];
  const found = rows.some((row, index) => render(row) !== before[index]);
  [branches[first], branches[second]] = [branches[second], branches[first]];
  results.push({ found, atom: template.data.atoms[atom][0], first, second });
}
console.log(JSON.stringify(results));
