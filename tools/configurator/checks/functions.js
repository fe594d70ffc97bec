// node checks/functions.js NAME < ARGUMENTS: what a function of the page gives for each argument.

import { readFileSync } from "node:fs";

import { posixWord, powershellWord } from "../page/src/commands.js";
import { pythonTokens } from "../page/src/tokens.js";
import { yaml } from "../page/src/yaml.js";

const STANDARD_INPUT = 0;
const FUNCTIONS = { posixWord, powershellWord, pythonTokens, yaml };

const call = FUNCTIONS[process.argv[2]];
const rows = JSON.parse(readFileSync(STANDARD_INPUT, "utf8"));
console.log(JSON.stringify(rows.map((row) => call(row))));
