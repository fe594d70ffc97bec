// Commands to paste into a shell: sh, bash and zsh, or PowerShell.

import { distributionName, NAMES } from "./names.js";

const RELEASE = /^v?\d+\.\d+\.\d+$/;

/** A word of a POSIX shell. */
export function posixWord(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}

/**
 * A word of PowerShell. Inside single quotes only the quote itself is doubled. Programs also want a
 * backslash before a double quote: PowerShell before 7.3 passes it on as it is.
 */
export function powershellWord(text) {
  if (/^[\w+=:./-]+$/.test(text)) {
    return text;
  }
  return `'${text.replaceAll("'", "''")}'`;
}

const WORDS = { posix: posixWord, powershell: powershellWord };

function option(name, value, shell) {
  const text = Array.isArray(value) ? `[${value.join(", ")}]` : value;
  return `-d ${WORDS[shell](`${name}=${text}`)}`;
}

/** The folder of a project. */
export function folderOf(answers) {
  return distributionName(answers.package_name) || "project";
}

/** The command that makes a project with these answers. */
export function copyCommand(template, answers, shell = "posix") {
  const { source, version } = template.data;
  const given = Object.entries(template.different(answers));
  const options = given.map(([name, value]) => option(name, value, shell));
  const release = RELEASE.test(version) ? [`-r ${version}`] : [];
  const folder = WORDS[shell](folderOf(answers));
  return ["copier copy --defaults", ...release, ...options, source, folder].join(" ");
}

/**
 * The command that brings other answers into a project; "" if they are equal. It has no names: an
 * update that renames the package deletes its old folder, with the edits in it.
 */
export function updateCommand(template, before, after, shell = "posix") {
  const options = [];
  for (const name of template.questions.keys()) {
    const isOther = JSON.stringify(before[name]) !== JSON.stringify(after[name]);
    if (template.isAsked(name, after) && isOther && !NAMES.includes(name)) {
      options.push(option(name, after[name], shell));
    }
  }
  return options.length ? ["copier update --defaults -r :current:", ...options].join(" ") : "";
}
