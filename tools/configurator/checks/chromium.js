// Chromium without a screen, which asks no host of its own.

import puppeteer from "puppeteer-core";

const QUIET = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

export function launch() {
  const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
  // A machine may do other things: wait long before a failure.
  const patience = { timeout: 300_000, protocolTimeout: 600_000 };
  return puppeteer.launch({ executablePath, args: QUIET, headless: true, ...patience });
}
