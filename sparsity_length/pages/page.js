// Controls, keys and the beginning.

function fill(select, names, values = names) {
  select.replaceChildren(...names.map((name, index) => element("option", { value: values[index] }, name)));
}

// What changes the view ------------------------------------------------------------------------------------

function setModel(model) {
  state.model = model;
  listDocuments();
  shadeTargets();
  showTarget();
}

function setRule(rule) {
  state.rule = rule;
  showTarget();
}

function setFar(far) {
  state.far = far;
  showTarget();
}

function setCriterion(criterion) {
  state.criterion = criterion;
  showTarget();
}

function setK(kIndex) {
  state.kIndex = Math.min(data.k.length - 1, Math.max(0, kIndex));
  showTarget();
}

function setBeside(key) {
  state.beside = besideChoices().find((choice) => besideKey(choice) === key) ?? null;
  showTarget();
}

const nextOf = (names, now) => names[(names.indexOf(now) + 1) % names.length];

function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  at("theme").value = theme;
  try {
    localStorage.setItem("theme", theme);
  } catch { /* opened where nothing may be kept */ }
}

function keptTheme() {
  try {
    return localStorage.getItem("theme") ?? "auto";
  } catch {
    return "auto";
  }
}

// Keys -----------------------------------------------------------------------------------------------------

const KEYS = {
  k: ["one more token, k", () => setK(state.kIndex + 1)],
  j: ["one token less", () => setK(state.kIndex - 1)],
  n: ["the null, and back", () => { if (hasNull()) setFar(state.far === "own" ? "other_document" : "own"); }],
  d: ["next document of the list", () => openNeighbour(1)],
  s: ["document before it", () => openNeighbour(-1)],
  m: ["next model", () => setModel(nextOf(data.models, state.model))],
  r: ["next rule", () => setRule(nextOf(data.rules, state.rule))],
  c: ["loss or divergence", () => setCriterion(nextOf(criteria(), state.criterion))],
  l: ["copy a link to this view", () => copyLink()],
  "/": ["search", () => at("search").focus()],
  "?": ["these keys", () => at("keys").showModal()],
};

function pressed(event) {
  if (event.altKey || event.ctrlKey || event.metaKey || event.target.matches("input[type=search], input[type=text], select") || at("keys").open) return;
  const key = KEYS[event.key];
  if (key === undefined) return;
  event.preventDefault();
  key[1]();
}

function moveInText(event) {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
  if (step !== undefined) {
    event.preventDefault();
    moveBy(step);
  } else if (event.key === " " || event.key === "Enter") {
    event.preventDefault(); // the focused target is chosen already
  }
}

// The beginning --------------------------------------------------------------------------------------------

function describe() {
  const { short_context_length: short, long_context_length: long } = data;
  at("about").textContent = `${data.results}: ${data.documents.length} document${data.documents.length > 1 ? "s" : ""}, ${everyTarget.length.toLocaleString("en")} targets; short context ${short} tokens, long context up to ${long}`;
  at("lengths").textContent = `the ${short} tokens before the target; all before it in its chunk of ${long} tokens. The rest is the distant context.`;
  const way = data.search_swaps ? "with the token replaced by another document's" : "without the token";
  at("influence-meaning").textContent = `loss under the long context ${way}, minus loss under the long context: positive if the token helps.`;
  at("k-star-meaning").textContent = `the least k studied that recovers ${Math.round(data.recovery_fraction * 100)}% of the target's gain.`;
  at("left-out").replaceChildren(...data.left_out.map((sentence) => element("li", {}, sentence)));
  at("scale-low").textContent = `≤ ${nats(-deepest, 1)}`;
  at("scale-high").textContent = `≥ ${signedNats(deepest, 1)}`;
  at("key-list").replaceChildren(...Object.entries(KEYS).flatMap(([key, [meaning]]) => [
    element("dt", {}, element("kbd", {}, key)), element("dd", {}, meaning),
  ]));
}

/** Of one document a list, a search and a sort say nothing: its targets alone are listed, behind the text. */
function showNoListOfOne() {
  at("documents-tab").parentElement.hidden = at("search").closest("label").hidden = true;
  at("columns").classList.add("one-document");
  for (const key of ["d", "s", "/"]) delete KEYS[key];
  showPanel("targets");
}

function fillControls() {
  fill(at("model"), data.models);
  fill(at("rule"), data.rules);
  const besides = besideChoices();
  const named = ({ model, rule }) => (data.models.length > 1 ? `${model}: ${rule}` : rule);
  fill(at("beside"), ["nothing", ...besides.map(named)], ["", ...besides.map(besideKey)]);
  at("beside").closest("label").hidden = at("beside-legend").hidden = besides.length < 2;
  const inWords = { loss: "the loss", divergence: "the prediction (divergence)" };
  fill(at("criterion"), criteria().map((name) => inWords[name]), criteria());
  at("criterion").closest("label").hidden = criteria().length < 2;
  at("k").max = data.k.length - 1;
}

function listen() {
  at("model").addEventListener("change", () => setModel(at("model").value));
  at("rule").addEventListener("change", () => setRule(at("rule").value));
  at("criterion").addEventListener("change", () => setCriterion(at("criterion").value));
  at("beside").addEventListener("change", () => setBeside(at("beside").value));
  at("k").addEventListener("input", () => setK(Number(at("k").value)));
  at("theme").addEventListener("change", () => setTheme(at("theme").value));
  at("controls").addEventListener("change", (event) => { if (event.target.name === "far") setFar(event.target.value); });
  at("controls").addEventListener("submit", (event) => event.preventDefault());
  at("search").addEventListener("input", () => { listDocuments(); listTargets(); markSearched(); });
  at("sort").addEventListener("change", listDocuments);
  for (const id of ["sort-targets", "least", "most"]) at(id).addEventListener("input", () => { numTargetRows = ROWS_AT_A_TIME; listTargets(); });
  at("more-targets").addEventListener("click", () => { numTargetRows += ROWS_AT_A_TIME; listTargets(); });
  for (const name of ["documents", "targets"]) {
    at(name).addEventListener("keydown", moveInList);
    at(`${name}-tab`).addEventListener("click", () => showPanel(name));
    at(`${name}-tab`).addEventListener("keydown", moveBetweenPanels);
  }
  at("text").addEventListener("keydown", moveInText);
  at("copy-link").addEventListener("click", copyLink);
  at("save-csv").addEventListener("click", saveCsv);
  at("save-svg").addEventListener("click", saveSvg);
  at("show-keys").addEventListener("click", () => at("keys").showModal());
  at("close-keys").addEventListener("click", () => at("keys").close());
  document.addEventListener("keydown", pressed);
  window.addEventListener("hashchange", openAddress);
}

/** Open what the address says, if that is another view than this one. */
function openAddress() {
  if (state.document !== null && location.hash === addressOfView()) return;
  const target = readAddress(location.hash);
  const [first] = listDocuments();
  openDocument(target?.record ?? state.document ?? first, target);
}

function start() {
  if (data.documents.length === 1) showNoListOfOne();
  describe();
  fillControls();
  setTheme(keptTheme());
  state.kIndex = Math.floor(data.k.length / 2);
  listen();
  openAddress();
}

start();
