// Light, dark, or as the system has it. The documentation's theme, Furo, keeps the choice by the
// same key.

import { byId } from "./dom.js";

const KEY = "theme";
const MODES = ["auto", "light", "dark"];
const SIGNS = { auto: "◐", light: "☀", dark: "☾" };
let mode = "auto";

function show() {
  if (mode === "auto") {
    delete document.documentElement.dataset.theme;
  } else {
    document.documentElement.dataset.theme = mode;
  }
  byId("theme").textContent = `${SIGNS[mode]} ${mode}`;
  byId("theme").setAttribute("aria-label", `Theme: ${mode}`);
}

/** Show the kept choice, and change it by the button. */
export function followTheme() {
  try {
    const kept = localStorage.getItem(KEY);
    mode = MODES.includes(kept) ? kept : "auto";
  } catch {
    // Without a storage, the choice lasts as long as the page.
  }
  show();
  byId("theme").addEventListener("click", () => {
    mode = MODES[(MODES.indexOf(mode) + 1) % MODES.length];
    try {
      localStorage.setItem(KEY, mode);
    } catch {
      // As above.
    }
    show();
  });
}
