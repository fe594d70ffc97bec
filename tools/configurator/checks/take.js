// node checks/take.js FOLDER ZIP < ANSWERS: write the zip of answers, and print the command.

import { readFileSync, writeFileSync } from "node:fs";

import { zip } from "../page/src/archive.js";
import { copyCommand, folderOf } from "../page/src/commands.js";
import { loadTemplate } from "./load.js";

const STANDARD_INPUT = 0;
const [folder, file] = process.argv.slice(2);
const template = loadTemplate(folder);
const given = JSON.parse(readFileSync(STANDARD_INPUT, "utf8"));
const answers = template.complete(given);
writeFileSync(file, zip(template.render(given), folderOf(answers)));
console.log(JSON.stringify(copyCommand(template, answers)));
