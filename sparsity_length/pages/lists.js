// What can be opened: documents, and targets of all documents, searched, sorted and filtered.

const ROWS_AT_A_TIME = 100;
let numTargetRows = ROWS_AT_A_TIME;

// Documents ------------------------------------------------------------------------------------------------

function textOf(record) {
  record.text ??= record.chunks.map((chunk) => chunk.pieces.join("")).join("\n");
  return record.text;
}

const searchedWords = () => at("search").value.trim().toLowerCase();

function found(record, words) {
  if (words === "") return true;
  record.lowerText ??= textOf(record).toLowerCase();
  return record.id.startsWith(words) || record.lowerText.includes(words);
}

function inOrder(records) {
  const gain = new Map(records.map((record) => [record, meanGain(record) ?? -Infinity]));
  const byGain = (a, b) => (gain.get(b) === gain.get(a) ? 0 : gain.get(b) - gain.get(a));
  const order = { "gain-down": byGain, "gain-up": (a, b) => byGain(b, a), hash: (a, b) => (a.id < b.id ? -1 : 1) };
  return [...records].sort(order[at("sort").value]);
}

/** A few words: the beginning, or what stands around the words searched for. */
function excerpt(record, words) {
  const place = words === "" ? -1 : record.lowerText.indexOf(words);
  const start = Math.max(0, place - 20);
  const part = textOf(record).slice(start, start + 60).replace(/^[\udc00-\udfff]|[\ud800-\udbff]$/g, "");
  return (start > 0 ? "…" : "") + part.replace(/\s+/g, " ");
}

function listDocuments() {
  const words = searchedWords();
  const records = inOrder(data.documents.filter((record) => found(record, words)));
  at("found").textContent = `${records.length} of ${data.documents.length} documents; mean gain in nats`;
  at("documents").replaceChildren(...records.map((record) => documentItem(record, words)));
  makeOneReachable(at("documents"));
  return records;
}

function documentItem(record, words) {
  const gain = meanGain(record);
  const button = element(
    "button", { type: "button", tabindex: "-1", "data-id": record.id, "aria-current": String(record === state.document) },
    element("span", { class: "start" }, excerpt(record, words)),
    element("span", { class: "gain" }, gain === null ? "–" : signedNats(gain)),
  );
  button.addEventListener("click", () => openDocument(record));
  return element("li", {}, button);
}

/** Of a list that the arrow keys move in, Tab reaches one button: the current one, or the first. */
function makeOneReachable(list) {
  const current = list.querySelector("[aria-current=true]") ?? list.querySelector("button");
  current?.setAttribute("tabindex", "0");
}

/** The next document of the list, or the one before it. */
function openNeighbour(step) {
  const ids = [...at("documents").querySelectorAll("button")].map((button) => button.dataset.id);
  const id = ids[Math.min(ids.length - 1, Math.max(0, ids.indexOf(state.document.id) + step))];
  if (id !== undefined && id !== state.document.id) openDocument(data.documents.find((record) => record.id === id));
}

// Targets of all documents ---------------------------------------------------------------------------------

const TARGET_COLUMNS = { gain: "gain", specific: "document-specific gain", expected: "expected gain", k: "k*", gap: "gap" };

/** The targets that the filter lets through, in the order chosen. */
function listedTargets() {
  const [name, direction] = at("sort-targets").value.split("-"), sign = direction === "up" ? 1 : -1;
  const least = numberIn("least"), most = numberIn("most"), words = searchedWords();
  const rows = everyTarget.flatMap((target) => {
    const value = measures[name](target);
    const isIn = value !== null && (least === null || value >= least) && (most === null || value <= most);
    return isIn && found(target.record, words) ? [{ target, value }] : [];
  });
  return rows.sort((a, b) => (a.value === b.value ? 0 : sign * (a.value - b.value)));
}

function numberIn(id) {
  const text = at(id).value.trim();
  return text === "" || Number.isNaN(Number(text)) ? null : Number(text);
}

function listTargets() {
  if (at("targets-panel").hidden) return;
  const [name] = at("sort-targets").value.split("-");
  const rows = listedTargets(), noGap = name === "gap" && rows.length === 0;
  at("found-targets").textContent = noGap ? "The gap is to the model beside: choose another one there."
    : `${rows.length.toLocaleString("en")} of ${everyTarget.length.toLocaleString("en")} targets; ${TARGET_COLUMNS[name]}${name === "k" ? "" : " in nats"}`;
  at("targets").replaceChildren(...rows.slice(0, numTargetRows).map(({ target, value }) => targetItem(target, name, value)));
  at("more-targets").hidden = rows.length <= numTargetRows;
  makeOneReachable(at("targets"));
}

function targetItem(target, name, value) {
  const chunk = target.record.chunks[target.chunkIndex], place = chunk.targets[target.index];
  const before = chunk.pieces.slice(Math.max(0, place - 8), place).join("").replace(/\s+/g, " ");
  const isCurrent = target.record === state.document && target.chunkIndex === state.chunk && target.index === state.target;
  const button = element(
    "button", { type: "button", tabindex: "-1", "aria-current": String(isCurrent) },
    element(
      "span", { class: "start" },
      element("span", { class: "before" }, Array.from(before).slice(-24).join("")), element("b", {}, word(chunk.pieces, place)),
    ),
    element("span", { class: "gain" }, name === "k" ? kStarInWords(value === Infinity ? "censored" : value, true) : signedNats(value)),
  );
  button.addEventListener("click", () => openDocument(target.record, target));
  return element("li", {}, button);
}

/** Show the documents, or the targets of all. */
function showPanel(name) {
  for (const panel of ["documents", "targets"]) {
    at(`${panel}-tab`).setAttribute("aria-selected", String(panel === name));
    at(`${panel}-tab`).tabIndex = panel === name ? 0 : -1;
    at(`${panel}-panel`).hidden = panel !== name;
  }
  listTargets();
}

/** Left and right between the two lists. */
function moveBetweenPanels(event) {
  if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
  event.preventDefault();
  const name = at("targets-panel").hidden ? "targets" : "documents";
  showPanel(name);
  at(`${name}-tab`).focus();
}

/** Up and down, Home and End among the buttons of a list. */
function moveInList(event) {
  const buttons = [...event.currentTarget.querySelectorAll("button")], now = buttons.indexOf(document.activeElement);
  const next = { ArrowDown: now + 1, ArrowUp: now - 1, Home: 0, End: buttons.length - 1 }[event.key];
  if (next === undefined || now < 0) return;
  event.preventDefault();
  buttons[Math.min(buttons.length - 1, Math.max(0, next))].focus();
}
