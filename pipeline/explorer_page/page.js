// State, and what happens on a click or a key. The record of a document is described in explorer_records.py.

const data = JSON.parse(document.getElementById("data").textContent);
const unit = data.unit_nats;
const at = (id) => document.getElementById(id);
const state = { document: null, model: data.models[0], rule: data.rules[0], far: "own", kIndex: 0, chunk: 0, target: 0 };
let tokens = []; // a list a chunk: the elements of its tokens
let lit = []; // the elements that light up now

const inNats = (value) => (value === null ? null : value * unit);
const gainsOf = (measured) => measured.short.map((short, index) => (short - measured.long[index]) * unit);
const allGains = (record, model) => record.chunks.flatMap((chunk) => (model in chunk.models ? gainsOf(chunk.models[model]) : []));

/** Mean gain of a document's targets in nats; null where the model was not run on it. */
function meanGain(record) {
  const gains = allGains(record, state.model);
  return gains.length === 0 ? null : gains.reduce((sum, gain) => sum + gain, 0) / gains.length;
}

/** The gain of the deepest shade: one scale for all models and documents, which 19 in 20 targets stay within. */
function deepestGain() {
  const sizes = data.documents.flatMap((record) => data.models.flatMap((model) => allGains(record, model))).map(Math.abs);
  sizes.sort((a, b) => a - b);
  return Math.max(0.1, Math.ceil((sizes[Math.floor(sizes.length * 0.95)] ?? 0) * 10) / 10);
}
const deepest = deepestGain();

function textOf(record) {
  record.text ??= record.chunks.map((chunk) => chunk.pieces.join("")).join("\n");
  return record.text;
}

// Documents ------------------------------------------------------------------------------------------------

function found(record, words) {
  record.lowerText ??= textOf(record).toLowerCase();
  return words === "" || record.id.startsWith(words) || record.lowerText.includes(words);
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
  const words = at("search").value.trim().toLowerCase();
  const records = inOrder(data.documents.filter((record) => found(record, words)));
  at("found").textContent = `${records.length} of ${data.documents.length} documents; mean gain in nats`;
  at("documents").replaceChildren(...records.map((record) => documentItem(record, words)));
  const current = at("documents").querySelector("[aria-current=true]") ?? at("documents").querySelector("button");
  current?.setAttribute("tabindex", "0");
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

function openDocument(record) {
  state.document = record;
  for (const button of at("documents").querySelectorAll("button")) {
    const isCurrent = button.dataset.id === record.id;
    button.setAttribute("aria-current", String(isCurrent));
    button.tabIndex = isCurrent ? 0 : -1;
  }
  drawText();
  const gains = record.chunks.map((chunk) => (state.model in chunk.models ? gainsOf(chunk.models[state.model]) : []));
  const largest = gains.flat().reduce((most, gain) => Math.max(most, gain), -Infinity);
  state.chunk = Math.max(0, gains.findIndex((ofChunk) => ofChunk.includes(largest)));
  state.target = Math.max(0, gains[state.chunk].indexOf(largest));
  choose(state.chunk, state.target, false);
}

// Text -----------------------------------------------------------------------------------------------------

function drawText() {
  const record = state.document;
  at("text-heading").textContent = `Document ${record.id}`;
  const chunks = record.chunks.map((chunk) => drawChunk(chunk.pieces));
  tokens = chunks.map((chunk) => chunk.tokens);
  record.chunks.forEach((chunk, chunkIndex) => {
    chunk.targets.forEach((place, index) => {
      const token = tokens[chunkIndex][place];
      token.classList.add("target");
      if (/^\s*\n\s*$/.test(chunk.pieces[place])) token.classList.add("newline");
      token.setAttribute("role", "button");
      token.setAttribute("aria-pressed", "false");
      token.tabIndex = -1;
      token.addEventListener("click", () => choose(chunkIndex, index, true));
    });
  });
  at("text").replaceChildren(...record.chunks.flatMap((chunk, index) => {
    const last = chunk.start + chunk.pieces.length - 1;
    const heading = element("p", { class: "between" }, `tokens ${chunk.start} to ${last} of ${record.num_tokens}`);
    return [heading, chunks[index].paragraph];
  }));
  shadeTargets();
}

/** A chunk's paragraph and the element of each token. The blank before a word stays outside of its token's shade. */
function drawChunk(pieces) {
  const paragraph = element("p", { class: "chunk", dir: "auto" });
  const ofTokens = pieces.map((piece) => {
    const hasBlank = /^ [^ ]/u.test(piece);
    const token = element("span", { class: isShapeless(piece) ? "token shapeless" : "token" }, hasBlank ? piece.slice(1) : piece);
    if (hasBlank) paragraph.append(" ");
    paragraph.append(token);
    return token;
  });
  return { paragraph, tokens: ofTokens };
}

function shadeTargets() {
  state.document.chunks.forEach((chunk, chunkIndex) => {
    const gains = state.model in chunk.models ? gainsOf(chunk.models[state.model]) : null;
    chunk.targets.forEach((place, index) => {
      const token = tokens[chunkIndex][place];
      const gain = gains === null ? null : gains[index];
      token.style.setProperty("--hue", gain > 0 ? "var(--helps)" : "var(--hurts)");
      token.style.setProperty("--depth", Math.min(1, Math.abs(gain ?? 0) / deepest).toFixed(3));
      const said = gain === null ? "not measured" : `gain ${signedNats(gain)} nats`;
      token.title = said;
      token.setAttribute("aria-label", `${word(chunk.pieces, place)}, ${said}`);
    });
  });
}

function chosenToken() {
  return tokens[state.chunk][state.document.chunks[state.chunk].targets[state.target]];
}

/** Make a target the chosen one; `withFocus` where it was reached by key or click. */
function choose(chunkIndex, targetIndex, withFocus) {
  const before = at("text").querySelector(".target[aria-pressed=true]");
  before?.setAttribute("aria-pressed", "false");
  if (before) before.tabIndex = -1;
  Object.assign(state, { chunk: chunkIndex, target: targetIndex });
  const token = chosenToken();
  token.setAttribute("aria-pressed", "true");
  token.tabIndex = 0;
  if (withFocus) token.focus();
  showTarget();
}

function moveBy(step) {
  const places = state.document.chunks.flatMap((chunk, chunkIndex) => chunk.targets.map((_, index) => [chunkIndex, index]));
  const now = places.findIndex(([chunkIndex, index]) => chunkIndex === state.chunk && index === state.target);
  const [chunkIndex, index] = places[Math.min(places.length - 1, Math.max(0, now + step))];
  choose(chunkIndex, index, true);
}

// The chosen target ----------------------------------------------------------------------------------------

/** What was measured of the chosen target, in nats; `selection` is null where the model has none of this rule. */
function measuredTarget() {
  const chunk = state.document.chunks[state.chunk], measured = chunk.models[state.model];
  if (measured === undefined) return null;
  const index = state.target, rule = measured.rules[state.rule];
  const losses = { short: inNats(measured.short[index]), long: inNats(measured.long[index]), own: null, null: null };
  if (rule === undefined) return { losses, selection: null, kStar: null };
  losses.own = rule.own.loss[index].map(inNats);
  losses.null = rule.other_document?.loss[index].map(inNats) ?? null;
  const of = rule[state.far] ?? rule.own, place = chunk.targets[index];
  const selection = of.distance[index].slice(0, data.k[state.kIndex]).map((distance, rank) => ({
    rank: rank + 1, distance, influence: inNats(of.influence[index][rank]), place: place - distance,
    word: "token" in of ? visible(data.null_pieces[of.token[index][rank]]) : word(chunk.pieces, place - distance),
  }));
  return { losses, selection, kStar: rule.k_star[index] };
}

function showTarget() {
  const chunk = state.document.chunks[state.chunk], place = chunk.targets[state.target];
  const name = word(chunk.pieces, place), measured = measuredTarget();
  at("target-heading").replaceChildren("Target “", element("bdi", {}, name), `”, position ${chunk.start + place}`);
  light(chunk, place, measured?.selection ?? []);
  at("k-value").textContent = data.k[state.kIndex];
  at("k").setAttribute("aria-valuetext", `k = ${data.k[state.kIndex]}`);
  at("chart").parentElement.hidden = at("tokens").hidden = !measured?.selection;
  if (measured === null) {
    at("said").textContent = `${state.model} was not run on this document.`;
    at("numbers").replaceChildren();
    at("note").textContent = "";
    return;
  }
  const { losses } = measured, gain = losses.short - losses.long;
  const verb = gain > 0 ? "falls" : "rises";
  at("said").textContent = `With the long context the loss ${verb} from ${nats(losses.short)} to ${nats(losses.long)} nats: a gain of ${signedNats(gain)}.`;
  showNumbers(measured);
  if (measured.selection === null) {
    at("note").textContent = `No influential tokens of the rule ${state.rule} were measured for ${state.model}.`;
    return;
  }
  drawChart(at("chart"), data.k, losses, state.kIndex);
  const ofNull = losses.null === null ? "" : " grey, dashed: the null;";
  at("chart-caption").textContent = `Loss in nats. Blue: tokens of this document;${ofNull} dotted: the long context.`;
  showTokens(measured.selection, losses.null !== null);
}

function showNumbers({ losses, kStar, selection }) {
  const kStarInWords = kStar === null ? `none: gain below ${data.minimum_gain}` : kStar === "censored" ? `more than ${data.k[data.k.length - 1]}` : String(kStar);
  const k = data.k[state.kIndex], long = ["Loss, long context", nats(losses.long, 3)];
  const numbers = [["Loss, short context", nats(losses.short, 3)]];
  if (selection !== null) {
    numbers.push([`… and ${k} token${k > 1 ? "s" : ""}`, nats(losses.own[state.kIndex], 3)]);
    if (losses.null !== null) numbers.push([`… and ${k} of the null`, nats(losses.null[state.kIndex], 3)]);
  }
  numbers.push(long);
  if (selection !== null) numbers.push(["k*", kStarInWords]);
  at("numbers").replaceChildren(...numbers.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

function showTokens(selection, hasNull) {
  const isNull = hasNull && state.far !== "own";
  const largest = Math.max(0, ...selection.map((token) => Math.abs(token.influence ?? 0)));
  const caption = `${isNull ? "Another document's tokens that" : "Far tokens that"} ${state.rule} ranks first`;
  const heading = (text, kind = "") => element("th", { scope: "col", class: kind }, text);
  const head = element("tr", {}, heading("rank", "rank"), heading("token", "word"), heading("distance, tokens", "distance"), heading("influence, nats", "influence"), element("td"));
  const rows = selection.map((token) => tokenRow(token, largest, () => {
    const shown = tokens[state.chunk][token.place];
    if (!shown.hasAttribute("tabindex")) shown.tabIndex = -1;
    shown.focus();
    shown.scrollIntoView({ block: "nearest" });
  }));
  at("tokens").replaceChildren(element("caption", {}, caption), element("thead", {}, head), element("tbody", {}, ...rows));
  at("note").textContent = !hasNull ? "This rule was measured without its null: it fits neither the answer nor the prediction."
    : isNull ? "In the null the far context is another document's. Dashed frames in the text mark where these tokens stood; the words inside are this document's."
    : "";
}

/** Light up the influential tokens, and underline the short context. */
function light(chunk, place, selection) {
  for (const token of lit) {
    token.classList.remove("lit", "foreign", "near");
    delete token.dataset.rank;
    if (!token.classList.contains("target")) token.removeAttribute("title");
  }
  const near = tokens[state.chunk].slice(Math.max(0, place - data.short_context_length), place);
  for (const token of near) token.classList.add("near");
  const largest = Math.max(0, ...selection.map((token) => token.influence ?? 0));
  const chosen = selection.map((token) => {
    const shown = tokens[state.chunk][token.place];
    shown.classList.add("lit");
    shown.classList.toggle("foreign", state.far !== "own");
    shown.dataset.rank = token.rank;
    const strength = largest > 0 ? Math.max(0, token.influence ?? 0) / largest : 0;
    shown.style.setProperty("--strength", strength.toFixed(3));
    const influence = token.influence === null ? "" : `, influence ${signedNats(token.influence, 3)} nats`;
    if (!shown.classList.contains("target")) shown.title = `rank ${token.rank}${influence}, distance ${token.distance}`;
    return shown;
  });
  lit = [...near, ...chosen];
}

// Controls -------------------------------------------------------------------------------------------------

function fill(select, names) {
  select.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
}

/** Up and down, Home and End among the documents of the list. */
function moveInList(event) {
  const buttons = [...at("documents").querySelectorAll("button")], now = buttons.indexOf(document.activeElement);
  const next = { ArrowDown: now + 1, ArrowUp: now - 1, Home: 0, End: buttons.length - 1 }[event.key];
  if (next === undefined || now < 0) return;
  event.preventDefault();
  buttons[Math.min(buttons.length - 1, Math.max(0, next))].focus();
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

function describe() {
  const { short_context_length: short, long_context_length: long } = data;
  const numTargets = data.documents.reduce((sum, record) => sum + record.chunks.reduce((n, chunk) => n + chunk.targets.length, 0), 0);
  at("about").textContent = `${data.results}: ${data.documents.length} documents, ${numTargets.toLocaleString("en")} targets; short context ${short} tokens, long context up to ${long}`;
  at("lengths").textContent = `the ${short} tokens before the target; all before it in its chunk of ${long} tokens. The rest is the far context.`;
  const way = data.intervention === "substitute" ? "with the token replaced by one drawn from the training text" : "without the token";
  at("influence-meaning").textContent = `loss under the long context ${way}, minus loss under the long context: positive where the token helps.`;
  at("k-star-meaning").textContent = `the least k studied that recovers ${Math.round(data.recovery_fraction * 100)} % of the target's gain.`;
  at("left-out").replaceChildren(...data.left_out.map((sentence) => element("li", {}, sentence)));
  at("scale-low").textContent = `≤ ${nats(-deepest, 1)}`;
  at("scale-high").textContent = `≥ ${signedNats(deepest, 1)}`;
}

function start() {
  describe();
  fill(at("model"), data.models);
  fill(at("rule"), data.rules);
  state.kIndex = Math.floor(data.k.length / 2);
  Object.assign(at("k"), { max: data.k.length - 1, value: state.kIndex });
  at("model").addEventListener("change", () => {
    state.model = at("model").value;
    listDocuments();
    shadeTargets();
    showTarget();
  });
  at("rule").addEventListener("change", () => { state.rule = at("rule").value; showTarget(); });
  at("k").addEventListener("input", () => { state.kIndex = Number(at("k").value); showTarget(); });
  at("controls").addEventListener("change", (event) => {
    if (event.target.name === "far") { state.far = event.target.value; showTarget(); }
  });
  at("controls").addEventListener("submit", (event) => event.preventDefault());
  at("search").addEventListener("input", listDocuments);
  at("sort").addEventListener("change", listDocuments);
  at("documents").addEventListener("keydown", moveInList);
  at("text").addEventListener("keydown", moveInText);
  openDocument(listDocuments()[0]);
}

start();
