// The size of a file: lines, and tokens of Python as tools/budget.py counts them.

const TOKEN = new RegExp(
  [
    "(?<space>[ \\t\\f]+|\\\\\\r?\\n)",
    "(?<comment>#[^\\n]*)",
    "(?<line>\\r?\\n)",
    "(?<text>[rRbBuUfF]{0,2}(?:'''(?:[^\\\\]|\\\\[^])*?'''|\"\"\"(?:[^\\\\]|\\\\[^])*?\"\"\"" +
      "|'(?:[^'\\\\\\n]|\\\\[^])*'|\"(?:[^\"\\\\\\n]|\\\\[^])*\"))",
    "(?<number>0[xXbBoO][\\da-fA-F_]+" +
      "|(?:\\d[\\d_]*\\.?[\\d_]*|\\.\\d[\\d_]*)(?:[eE][-+]?\\d[\\d_]*)?[jJ]?)",
    "(?<name>[\\p{L}\\p{Nl}_][\\p{L}\\p{N}\\p{M}_]*)",
    "(?<operator>\\*\\*=|//=|>>=|<<=|\\.\\.\\.|[-+*/%&|^@=!<>:]=|->|\\*\\*|//|<<|>>|[^])",
  ].join("|"),
  "gu",
);
const MOST_SIZES = 3000;
const sizes = new Map();

/** The tokens of a Python source, without comments, docstrings and layout. */
export function pythonTokens(source) {
  let total = 0;
  let inLine = 0;
  let isTextAlone = true; // a line with nothing but a text is a docstring
  let depth = 0; // of brackets, in which the end of a line ends nothing
  for (const { 0: token, groups } of source.matchAll(TOKEN)) {
    if (groups.space !== undefined || groups.comment !== undefined) {
      continue;
    }
    if (groups.line !== undefined) {
      if (depth === 0) {
        total += isTextAlone ? 0 : inLine;
        inLine = 0;
        isTextAlone = true;
      }
      continue;
    }
    inLine += 1;
    if (groups.text === undefined) {
      isTextAlone = false;
    }
    if ("([{".includes(token)) {
      depth += 1;
    } else if (")]}".includes(token)) {
      depth -= 1;
    }
  }
  return isTextAlone ? total : total + inLine;
}

/** The lines of a file, and its tokens if it is Python. */
export function sizeOf(path, text) {
  const isPython = path.endsWith(".py");
  const key = `${isPython}${text}`;
  if (!sizes.has(key)) {
    const ends = text.split("\n").length;
    const lines = text.endsWith("\n") || text === "" ? ends - 1 : ends;
    sizes.set(key, { lines, tokens: isPython ? pythonTokens(text) : null });
    if (sizes.size > MOST_SIZES) {
      sizes.delete(sizes.keys().next().value);
    }
  }
  return sizes.get(key);
}
