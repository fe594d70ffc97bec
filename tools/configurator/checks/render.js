// node checks/render.js FOLDER < ROWS: what the page gives for answers, as JSON.
// Each row is a set of answers; for each comes { problem, files, again, visited }: files as
// [hash, executable] by path, and whether the answers of a link give the same files.

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";

import { loadTemplate } from "./load.js";

const STANDARD_INPUT = 0;
const template = loadTemplate(process.argv[2]);

function hashed(files) {
  const rows = {};
  for (const [path, { text, executable }] of files) {
    rows[path] = [createHash("sha256").update(text).digest("hex"), executable];
  }
  return rows;
}

function result(answers) {
  const [problem] = template.problems(answers);
  if (problem) {
    return { problem };
  }
  const before = template.visited;
  const files = hashed(template.render(answers));
  const visited = template.visited - before;
  const linked = template.different(template.complete(answers));
  const again = JSON.stringify(hashed(template.render(linked))) === JSON.stringify(files);
  const saved = template.render(answers).get(".copier-answers.yml").text;
  return { files, again, visited, saved };
}

const rows = JSON.parse(readFileSync(STANDARD_INPUT, "utf8"));
console.log(JSON.stringify(rows.map(result)));
