// The project as a zip.

import { strToU8, zipSync } from "fflate";

const UNIX = 3;
const PROGRAM = 0o100755;
const FILE = 0o100644;

/** The bytes of a zip with one folder. */
export function zip(files, folder) {
  const entries = {};
  for (const [path, { text, executable }] of files) {
    const mode = executable ? PROGRAM : FILE;
    entries[`${folder}/${path}`] = [strToU8(text), { os: UNIX, attrs: (mode << 16) >>> 0 }];
  }
  return zipSync(entries, { level: 6 });
}
