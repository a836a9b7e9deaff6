// Type-checks the studio with `tsc`. Errors inside the vendored libraries, whose sources it also reads, are ignored.

import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../../..", import.meta.url));
const tsc = fileURLToPath(new URL("node_modules/typescript/bin/tsc", import.meta.url));
const { stdout, stderr, error } = spawnSync(process.execPath, [tsc, "--project", root, "--pretty", "false"], {
  cwd: root,
  encoding: "utf8",
});
const lines = `${stdout}${stderr}`.split("\n").filter(Boolean);
const ours = lines.filter((line) => !line.startsWith("app/studio/vendor/") && !line.startsWith(" "));
for (const line of ours) console.error(line);
if (error) throw error;
process.exit(ours.length ? 1 : 0);
