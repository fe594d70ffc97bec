// What Copier does with a set of answers, from the decisions and texts that build.py wrote. Runs in
// a browser and in Node, and reads nothing of the page.

import { distributionName, packageName, PROBLEMS } from "./names.js";
import { yaml } from "./yaml.js";

const OPEN = "\ue000"; // around the name of a typed text
const MARK = /\ue000(\w+)\ue001/g;
const JOIN = "+";

/** Python's `"%g" % number`, for numbers from 0.0001 to 999999. */
function general(number) {
  return String(Number(number.toPrecision(6)));
}

/** The words of a list as Python writes it. */
function listed(text) {
  return [...text.matchAll(/'([^']+)'/g)].map(([, word]) => word);
}

export class Template {
  constructor(data) {
    this.data = data;
    this.texts = [...data.texts];
    this.loaded = new Set();
    this.visited = 0; // nodes, for the tests
    this.questions = new Map(data.questions.map((question) => [question.name, question]));
  }

  /** Add texts of files: those of a workload, or common ones. */
  add(group, [first, texts]) {
    for (const [index, text] of texts.entries()) {
      this.texts[first + index] = text;
    }
    this.loaded.add(group);
  }

  /** The groups of texts that the project of these answers needs. */
  groupsOf({ workload, extras }) {
    return ["", workload, ...(extras.length ? ["extras"] : [])];
  }

  /** Whether the files of these answers can be shown. */
  isReady(answers) {
    return this.groupsOf(answers).every((group) => this.loaded.has(group));
  }

  /** All answers, from those that are given. A question that is not asked has its default. */
  complete(given) {
    const answers = {};
    for (const question of this.data.questions) {
      answers[question.name] = this.#answer(question, given[question.name], answers);
    }
    return answers;
  }

  #answer({ name, multiple, choices, fixed, default: tree }, value, answers) {
    if (multiple) {
      const chosen = value ?? listed(this.decided(tree, answers));
      return choices.map((choice) => choice.value).filter((choice) => chosen.includes(choice));
    }
    if (value !== undefined) {
      return value;
    }
    if (name === "package_name") {
      return packageName(answers.project_name, this.data.reserved);
    }
    return choices ? this.decided(tree, answers) : fixed;
  }

  /** What a tree gives: a text with marks, or a value. */
  decided(tree, answers) {
    while (typeof tree === "number" && tree < 0) {
      this.visited += 1;
      const [kind, branches] = this.data.nodes[-1 - tree];
      if (kind === JOIN) {
        return branches.map((branch) => this.decided(branch, answers)).join("");
      }
      tree = branches[this.#branch(kind, answers)];
    }
    return typeof tree === "number" ? this.texts[tree] : tree[1];
  }

  /** Which branch of a decision the answers take. */
  #branch(atom, answers) {
    const [name, values] = this.data.atoms[atom];
    const [question, choice] = name.split(".");
    if (choice) {
      return answers[question].includes(choice) ? 1 : 0;
    }
    if (name === "project_description") {
      return answers[name] ? 1 : 0;
    }
    const isOther = name === "gpu" && answers.gpu === "other";
    const value = isOther ? `other ${answers.gpu_compute_capability}` : answers[name];
    const index = values.indexOf(value);
    if (index < 0) {
      throw new Error(`${name} has no value ${JSON.stringify(value)}`);
    }
    return index;
  }

  isAsked(name, answers) {
    return this.decided(this.questions.get(name).when, answers);
  }

  /** Why an answer cannot be given, as Copier says it; "" if it can. */
  refusal(name, value, answers) {
    const { choices, multiple, refused } = this.questions.get(name);
    const context = { ...answers, [name]: value };
    for (const item of choices ? [value].flat() : []) {
      const reason = this.#refusedChoice(choices, item, answers);
      if (reason) {
        return reason;
      }
    }
    if (!multiple && PROBLEMS[name]) {
      return PROBLEMS[name](value, { ...answers, reserved: this.data.reserved });
    }
    return refused === undefined ? "" : this.decided(refused, context).trim();
  }

  #refusedChoice(choices, item, answers) {
    const choice = choices.find(({ value }) => value === item);
    if (choice) {
      return this.decided(choice.refused, answers).trim();
    }
    const possible = choices.filter(({ refused }) => !this.decided(refused, answers));
    return `'${item}' is not in [${possible.map(({ value }) => `'${value}'`).join(", ")}]`;
  }

  /** The answers that Copier would refuse, each as [question, reason]; it stops at the first. */
  problems(given) {
    const answers = this.complete(this.#known(given));
    const problems = [];
    for (const name of this.questions.keys()) {
      if (given[name] !== undefined || this.isAsked(name, answers)) {
        const reason = this.refusal(name, given[name] ?? answers[name], answers);
        if (reason) {
          problems.push([name, reason]);
        }
      }
    }
    return problems;
  }

  /** The answers without those that no decision has a branch for. */
  #known(given) {
    const known = { ...given };
    for (const [atom, values] of this.data.atoms) {
      const isOther = atom === "gpu" && known[atom] === "other";
      const isOffered = isOther || values.includes(known[atom]);
      if (atom in known && !isOffered && typeof values[0] === "string") {
        delete known[atom];
      }
    }
    if (!this.#offersCard(known)) {
      delete known.gpu_compute_capability;
    }
    return known;
  }

  #offersCard({ gpu, gpu_compute_capability: capability }) {
    const [, cards] = this.data.atoms.find(([atom]) => atom === "gpu");
    return gpu !== "other" || cards.includes(`other ${capability}`);
  }

  /** The answers that .copier-answers.yml keeps. */
  saved(answers) {
    const kept = { _commit: this.data.version, _src_path: this.data.source };
    for (const name of this.questions.keys()) {
      if (this.isAsked(name, answers)) {
        kept[name] = answers[name];
      }
    }
    return kept;
  }

  /** The files of a project, in the order of their paths. */
  render(given) {
    const answers = this.complete(given);
    const fill = this.#filling(answers);
    const filled = (tree) => {
      const text = this.decided(tree, answers);
      return text.includes(OPEN) ? text.replace(MARK, (_, name) => fill[name]()) : text;
    };
    const files = [];
    for (const { path, content, executable } of this.data.files) {
      const name = filled(path);
      if (name) {
        files.push([name, { text: filled(content), executable: Boolean(executable) }]);
      }
    }
    return new Map(files.sort(([one], [other]) => (one < other ? -1 : 1)));
  }

  /** What stands for each mark. */
  #filling(answers) {
    const description = answers.project_description;
    return {
      project_name: () => answers.project_name,
      package_name: () => answers.package_name,
      distribution_name: () => distributionName(answers.package_name),
      project_description: () => description,
      toml_description: () => description.replaceAll("\\", "\\\\").replaceAll('"', '\\"'),
      extras: () => [...answers.extras].sort().join(", ") || "none",
      memory: () => general(answers.gpu_memory_gb),
      answers: () => yaml(this.saved(answers)),
    };
  }

  /** The answers that differ from the defaults, which a link and a command need. */
  different(answers) {
    const given = {};
    for (const name of this.questions.keys()) {
      if (this.isAsked(name, answers)) {
        const usual = this.complete({ ...given, [name]: undefined })[name];
        if (JSON.stringify(usual) !== JSON.stringify(answers[name])) {
          given[name] = answers[name];
        }
      }
    }
    return given;
  }
}
