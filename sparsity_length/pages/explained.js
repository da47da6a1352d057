// One explained text: its tokens, shaded by total effect, and the sources of the prediction that is chosen.

const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const DEEPEST_NATS = 2;

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const signed = (nats) => `${nats < 0 ? "−" : "+"}${Math.abs(nats).toFixed(2)}`;
const cut = (words) => (words.length > 60 ? `${words.slice(0, 28).trimEnd()} … ${words.slice(-28).trimStart()}` : words);
const quoted = (piece) => (piece.trim() ? `“${cut(piece.trim().replace(/\s+/g, " "))}”` : piece.includes("\n") ? "line break" : piece ? "blank" : "part of a character");
const byEffect = [...data.targets].sort((one, other) => other.total_effect - one.total_effect);
const buttons = new Map();
let chosen = null;

// The text -------------------------------------------------------------------------------------------------

const tokens = data.pieces.map((piece) => element("span", { class: "token" }, piece));
const tokenAt = (position) => tokens[position - data.first_token];
data.losses.position.forEach((position, place) => {
  const of = (name) => data.losses[name][place];
  const token = tokenAt(position);
  token.style.setProperty("--depth", Math.min(1, of("swapped_divergence") / DEEPEST_NATS));
  token.title = `total effect ${of("swapped_divergence").toFixed(2)} nats; loss ${of("full_loss").toFixed(2)} with the full context, ${of("short_loss").toFixed(2)} with near tokens alone, ${of("swapped_loss").toFixed(2)} swapped`;
});

function choose(target, scrolls) {
  chosen = target;
  for (const token of tokens) {
    token.classList.remove("chosen", "source", "near");
    token.removeAttribute("data-rank");
  }
  for (const [of, button] of buttons) button.setAttribute("aria-current", of === target);
  tokenAt(target.position).classList.add("chosen");
  for (let place = target.near_position; place < target.position; place += 1) tokenAt(place).classList.add("near");
  for (const source of target.sources) {
    for (let place = source.source_position; place < source.source_end; place += 1) tokenAt(place).classList.add("source");
    let last = source.source_end - 1;
    while (last > source.source_position && /\n$|^$/.test(data.pieces[last - data.first_token])) last -= 1;
    tokenAt(last).dataset.rank = source.rank;
  }
  if (scrolls === "text") tokenAt(target.position).scrollIntoView({ block: "nearest" });
  if (scrolls === "list") buttons.get(target).scrollIntoView({ block: "nearest" });
}

for (const target of data.targets) {
  const token = tokenAt(target.position);
  token.classList.add("target");
  token.tabIndex = 0;
  token.setAttribute("role", "button");
  token.addEventListener("click", () => choose(target, "list"));
  token.addEventListener("keydown", (event) => {
    if (event.key === "Enter") choose(target, "list");
  });
}

// The list -------------------------------------------------------------------------------------------------

const list = byEffect.map((target) => {
  const first = Math.max(data.first_token, target.position - 8);
  const before = data.pieces.slice(first - data.first_token, target.position - data.first_token).join("").replace(/\s+/g, " ");
  const piece = target.token;
  const context = element("span", { class: "context" }, element("bdi", {}, before.trimStart(), element("b", {}, piece.trim() ? piece : quoted(piece))));
  const head = element("span", { class: "head" }, context, element("span", { class: "number" }, `${target.total_effect.toFixed(2)} nats`));
  const verdict = target.no_single_source ? element("span", { class: "none" }, "no single source") : `${Math.round(100 * target.recovered)}% recovered`;
  const sources = element("span", { class: "sources" }, verdict, !target.sources.length ? "" : target.no_single_source ? "; tried: " : " by ");
  target.sources.forEach((source, index) => {
    sources.append(index ? ", " : "", element("span", { class: "source" }, quoted(source.source)), ` ${signed(source.effect)}`);
  });
  const button = element("button", { type: "button" }, head, sources);
  button.addEventListener("click", () => choose(target, "text"));
  buttons.set(target, button);
  return element("li", {}, button);
});

document.addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step || event.ctrlKey || event.altKey || event.metaKey || !data.targets.length) return;
  const next = data.targets.indexOf(chosen) + step;
  choose(data.targets[Math.min(data.targets.length - 1, Math.max(0, next))], "list");
  tokenAt(chosen.position).scrollIntoView({ block: "nearest" });
  event.preventDefault();
});

// The rest -------------------------------------------------------------------------------------------------

document.title = `${data.name}, explained`;
at("name").textContent = data.name;
at("about").textContent = `${data.model} in ${data.dtype}; sources: ${data.unit}s.${data.first_token ? ` The first ${data.first_token} tokens of the text are not measured.` : ""}`;
at("summary").append(...data.summary.map((sentence) => element("li", {}, sentence)));
at("near-meaning").textContent = `the last tokens before the prediction (${data.near_tokens[0]} or some more), which stand in every context and are never sources.`;
at("effect-meaning").textContent = data.contrast === null
  ? `how far the prediction moves when another document’s tokens stand in the source’s place alone: KL(full ‖ without it), in nats.`
  : `by how much log p(“${data.contrast[0]}”) − log p(“${data.contrast[1]}”) falls when another document’s tokens stand in the source’s place alone, in nats.`;
at("text").append(...tokens);
at("targets").append(...list);
// First a prediction whose sources tell something.
if (byEffect.length) choose(byEffect.find((target) => !target.no_single_source) ?? byEffect[0]);
