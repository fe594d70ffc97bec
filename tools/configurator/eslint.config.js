import js from "@eslint/js";

const browser = ["document", "globalThis", "history", "localStorage", "location", "matchMedia"];
const more = ["navigator", "scrollTo", "addEventListener", "setTimeout", "clearTimeout", "Blob"];
const node = ["process", "console", "performance"];
const shared = ["URL", "URLSearchParams"];
const readonly = (names) => Object.fromEntries(names.map((name) => [name, "readonly"]));

export default [
  js.configs.recommended,
  {
    rules: {
      curly: "error",
      eqeqeq: "error",
      "func-style": ["error", "declaration", { allowArrowFunctions: true }],
      "max-depth": ["error", 3],
      "max-len": ["error", { code: 100, ignoreRegExpLiterals: true }],
      "max-lines-per-function": ["error", 60],
      "no-nested-ternary": "error",
      "no-sequences": "error",
      "no-var": "error",
      "prefer-const": "error",
    },
  },
  {
    files: ["page/src/**/*.js"],
    languageOptions: { globals: readonly([...browser, ...more, ...shared]) },
  },
  {
    files: ["checks/**/*.js"],
    languageOptions: { globals: readonly([...node, ...shared, ...browser, ...more]) },
  },
];
