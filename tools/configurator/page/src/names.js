// What copier.yml says about texts that a person types. If copier.yml changes, the build of the
// data stops: see WRITTEN in answers.py.

/** The answers that name a project. Another project's names are no reason to rename one's own. */
export const NAMES = ["project_name", "package_name", "project_description"];

// The characters that Python's str.strip removes.
const SPACE =
  "[\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]";
const SURROUNDING_SPACE = new RegExp(`^${SPACE}+|${SPACE}+$`, "gu");

const hasText = (text) => text.replace(SURROUNDING_SPACE, "") !== "";
const isPrintable = (text) => !/[\p{C}\p{Z}]/u.test(text.replaceAll(" ", ""));

/** The package's name for a project's name. */
export function packageName(project, reserved) {
  const words = project.toLowerCase().replace(/[^a-z0-9]+/g, "_");
  let name = words.replace(/^_+|_+$/g, "");
  if (/^[0-9]/.test(name)) {
    name = `project_${name}`;
  } else if (!name) {
    name = "my_training";
  }
  const isReserved = Object.values(reserved).some((names) => names.includes(name));
  return isReserved ? `${name}_training` : name;
}

/** The name of the folder and of the command of an installed project. */
export function distributionName(name) {
  return name.toLowerCase().replaceAll("_", "-").replace(/^-+|-+$/g, "");
}

function packageProblem(text, { reserved }) {
  const lower = text.toLowerCase();
  if (!/^[A-Za-z][A-Za-z0-9_]*$/.test(text)) {
    return "a letter, then letters, digits, _";
  }
  const reasons = [
    [reserved.keywords.includes(text), "a keyword of Python; rename it"],
    [reserved.standard_library.includes(lower), "hides a module of Python; rename"],
    [reserved.dependencies.includes(lower), "hides a dependency; rename it"],
    [reserved.folders.includes(lower), "another folder's name; rename it"],
    [reserved.devices.includes(lower), "a device on Windows; rename it"],
    [text.length > 60, "has more than 60 characters"],
  ];
  return reasons.find(([applies]) => applies)?.[1] ?? "";
}

function capabilityProblem(text, { gpu }) {
  if (gpu !== "other") {
    return "is asked only if gpu is other";
  }
  if (!/^[0-9]+\.[0-9]$/.test(text)) {
    return "looks like 8.9";
  }
  return Number(text) < 5 ? "PyTorch starts at 5.0" : "";
}

function memoryProblem(number, { gpu }) {
  if (gpu !== "other") {
    return "is asked only if gpu is other";
  }
  return number > 0 && number < 10000 ? "" : "is above 0 and below 10000";
}

function nameProblem(text) {
  if (!hasText(text)) {
    return "a project needs a name";
  }
  return isPrintable(text) ? "" : "one line of printable characters";
}

/** Why a typed answer is refused; "" if it is not. */
export const PROBLEMS = {
  project_name: nameProblem,
  package_name: packageProblem,
  project_description: (text) => (isPrintable(text) ? "" : "one line, printable"),
  gpu_compute_capability: capabilityProblem,
  gpu_memory_gb: memoryProblem,
};
