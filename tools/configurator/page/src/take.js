// What to take with you: the command, a zip, a link, and the update of an existing project.

import { zip } from "./archive.js";
import { copyCommand, folderOf, updateCommand } from "./commands.js";
import { byId, formatted, make, say, several } from "./dom.js";
import { totals } from "./files.js";
import { optionOf } from "./form.js";
import { NAMES } from "./names.js";

const KEPT = "kept"; // the choice of answers that are no preset
const LONGEST = 60; // characters of a choice

/** Fill a list with presets. */
export function fillPresets(select, first, names) {
  const options = Object.keys(names).map((name) => optionOf(name, name));
  select.replaceChildren(optionOf("", first), ...options);
}

/** A short name for answers, whatever the project's: the preset's, or what is not the default. */
export function nameOf(template, given, presets) {
  const choices = (answers) =>
    Object.entries(template.different(template.complete(answers))).filter(
      ([name]) => !NAMES.includes(name),
    );
  const key = (answers) => JSON.stringify(choices(answers));
  const preset = Object.entries(presets).find(([, answers]) => key(answers) === key(given));
  if (preset) {
    return preset[0];
  }
  return choices(given).map(([name, value]) => `${name}=${value}`).join(" ");
}

/** Show sizes, commands and buttons. */
export function showTake(template, state, presets, shell) {
  const { answers, files, others, other, problem } = state;
  byId("summary").replaceChildren(
    make("b", { textContent: answers.project_name }),
    " ",
    make("span", { textContent: sizes(totals(files), others && totals(others)) }),
  );
  const command = copyCommand(template, answers, shell);
  byId("command").textContent = problem ? `# ${problem[0]}: ${problem[1]}` : command;
  byId("update").hidden = others === null;
  if (others) {
    const update = updateCommand(template, template.complete(other), answers, shell);
    byId("update-command").textContent = update || "# the answers are equal; names stay";
  }
  for (const id of ["download", "link", "copy-command"]) {
    byId(id).disabled = problem !== undefined;
  }
  byId("swap").hidden = others === null;
  showCompared(template, other, presets);
}

function sizes(all, before) {
  const change = (key) => {
    const difference = before ? all[key] - before[key] : 0;
    const sign = difference > 0 ? "+" : "−";
    return difference ? ` (${sign}${formatted(Math.abs(difference))})` : "";
  };
  return [
    `${several(all.files, "file")}${change("files")}`,
    `${several(all.lines, "line")}${change("lines")}`,
    `${formatted(all.tokens)} Python tokens without tests${change("tokens")}`,
  ].join(" · ");
}

function showCompared(template, other, presets) {
  fillPresets(byId("compare"), "nothing", presets);
  if (other === null) {
    return;
  }
  const name = nameOf(template, other, presets);
  if (name in presets) {
    byId("compare").value = name;
    return;
  }
  const text = name.length > LONGEST ? `${name.slice(0, LONGEST - 2)}…` : name;
  byId("compare").append(optionOf(KEPT, text));
  byId("compare").value = KEPT;
}

/** Save the project as a file. */
export function download(answers, files) {
  const folder = folderOf(answers);
  const content = new Blob([zip(files, folder)], { type: "application/zip" });
  const address = URL.createObjectURL(content);
  make("a", { href: address, download: `${folder}.zip` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
  say(
    `${folder}.zip: unpack it, then cd ${folder} && git init && git add -A && ` +
      "git commit -m Start && make setup try. Later, copier update --defaults updates it.",
  );
}
