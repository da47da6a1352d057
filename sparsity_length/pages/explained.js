// One explained text: its tokens, shaded by what distant text does to their prediction, and the card of one.

const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const DEEPEST_NATS = 2;
const isPhone = matchMedia("(max-width: 50rem)");

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function percent(probability) {
  if (probability > 0 && probability < 0.0001) return "<0.01%";
  return `${(100 * probability).toFixed(probability >= 0.0995 ? 0 : probability >= 0.00995 ? 1 : 2)}%`;
}

function times(difference) {
  if (Math.abs(difference) > Math.log(1e6)) return difference > 0 ? "over a million times" : "under a millionth";
  const ratio = Math.exp(difference);
  return `${ratio >= 10 ? Math.round(ratio).toLocaleString("en") : Number(ratio.toPrecision(2))} times`;
}

const whole = (fraction) => `${Math.round(100 * fraction)}%`;
const nats = (value) => `${value < 0 ? "−" : ""}${Math.abs(value).toFixed(2)} nats`;
const bare = (piece) => piece.trim().replace(/\s+/g, " ");
function quoted(piece) {
  if (!piece || piece.includes("\ufffd")) return "part of a character";
  if (!bare(piece)) return piece.includes("\n") ? "line break" : "blank";
  return `“${bare(piece)}”`;
}

const ofTarget = (target) => `${target.is_part ? "part of " : ""}${quoted(target.token)}`;
const bold = (words) => element("b", {}, words);
const isOneToken = data.contrast === null && !data.is_whole;
const numNarrowed = data.targets.filter((target) => target.is_narrowed).length;
const ofTargets = new Map(data.targets.map((target) => [target.position, target]));
const placeOf = new Map(data.losses.position.map((position, place) => [position, place]));
const withDistant = data.first_token ? `with the last ${data.pieces.length.toLocaleString("en")} tokens` : "with the whole text";
const windowTokens = [...new Set(data.window_tokens)].join(" to ");
const card = at("card");
const aside = document.querySelector("aside");
let chosen = null;

// The text -------------------------------------------------------------------------------------------------

const tokens = data.pieces.map((piece, place) => element("span", { class: "token", "data-position": data.first_token + place }, piece));
const tokenAt = (position) => tokens[position - data.first_token];
/** Of a token that is part of a character, the one that shows the character. */
const visibleAt = (position) => (data.pieces[position - data.first_token] === "" && tokenAt(position + 1) ? visibleAt(position + 1) : tokenAt(position));

for (const [start, end, role] of data.labels) {
  for (let position = Math.max(start, data.first_token); position < end; position += 1) {
    const token = tokenAt(position);
    token.title = data.pieces[position - data.first_token].trim();
    token.classList.add("label");
    token.textContent = position === start ? role : "";
  }
}

data.losses.position.forEach((position, place) => {
  const token = tokenAt(position);
  const of = (name) => data.losses[name][place];
  const target = isOneToken ? ofTargets.get(position) : undefined;
  const effect = target ? target.total_effect : of("window_swapped_divergence");
  token.style.setProperty("--depth", Math.min(1, effect / DEEPEST_NATS));
  token.title = target
    ? `effect of distant text ${nats(effect)} (KL)`
    : `effect of distant text about ${nats(effect)} (KL), measured with ${windowTokens} near tokens; loss ${of("long_context_loss").toFixed(2)} ${withDistant}, about ${of("window_short_loss").toFixed(2)} with near tokens alone, ${of("window_swapped_loss").toFixed(2)} without the distant part`;
});

function near(position) {
  const first = Math.max(data.first_token, position - 8);
  const before = tokens.slice(first - data.first_token, position - data.first_token).map((token) => token.textContent).join("");
  return before.replace(/\s+/g, " ").trimStart();
}

// Commands -------------------------------------------------------------------------------------------------

function copied(command) {
  const code = element("code", {}, command);
  const button = element("button", { type: "button", class: "copy" }, "copy");
  button.addEventListener("click", () => {
    getSelection().selectAllChildren(code);
    document.execCommand("copy"); // also where a page from disk may not use the clipboard's own interface
    button.textContent = "copied";
  });
  return element("p", { class: "command" }, code, " ", button);
}

const explaining = (position) => copied(data.command === null ? `explain(text, model, position=${position})` : `${data.command} --position ${position} --out explained-${position}.html`);

function explainingAll() {
  const minutes = Math.ceil(((data.budget ?? 120) / 60) * Math.min(20, data.wanted.length / Math.max(1, numNarrowed))) + 1;
  return copied(data.command === null ? `explain(text, model, targets=${data.wanted.length}, budget=${60 * minutes})` : `${data.command} --targets ${data.wanted.length} --budget ${minutes}m --out ${data.file}`);
}

// The card -------------------------------------------------------------------------------------------------

function heading(words, position) {
  const close = element("button", { type: "button", class: "close", "aria-label": "Close" }, "×");
  close.addEventListener("click", () => {
    card.remove();
    tokenAt(position).scrollIntoView({ block: "nearest" });
  });
  return element("h3", {}, words, " ", element("small", {}, `token ${position}`), close);
}

function oneLine(target) {
  const left = target.total_effect * (1 - target.recovered);
  const parts = [withDistant, "without the distant part", "with these sources back"];
  const values = data.contrast === null
    ? [target.probability, target.probability_without, target.probability_with_sources].map(percent)
    : [0, target.total_effect, left].map((fall) => times(data.contrast[2] - fall));
  const line = element("p", { class: "line", title: `effect of distant text ${nats(target.total_effect)}${isOneToken ? " (KL)" : ""}, of which the sources recover ${target.is_narrowed ? "" : "about "}${whole(target.recovered)}` });
  if (data.contrast !== null) line.append(`“${data.contrast[0]}” is so many times as likely as “${data.contrast[1]}”: `);
  else if (data.is_whole) line.append("P of its tokens, on average (geometric mean): ");
  else line.append(`P(${ofTarget(target)}) `);
  values.forEach((value, index) => line.append(index ? ", " : "", bold(value), ` ${parts[index]}`));
  line.append(".");
  return line;
}

function alternatives(target) {
  if (!target.likeliest) return "";
  const rows = [["likeliest", target.likeliest], ["without", target.likeliest_without]];
  return element("dl", { class: "likely" }, ...rows.flatMap(([name, pairs]) => [
    element("dt", {}, name),
    element("dd", {}, ...pairs.flatMap(([piece, probability], index) => [index ? ", " : "", quoted(piece), " ", bold(percent(probability))])),
  ]));
}

function sourceItem(target, source) {
  const isNone = target.no_source;
  const isAgainst = source.effect / target.total_effect <= -0.1;
  const kind = isNone ? "no source" : source.is_needed ? "needed" : isAgainst ? "against" : "redundant";
  const why = { needed: "its swap alone takes at least 10% of the effect", against: "its swap alone adds at least 10% to the effect", redundant: "its swap alone takes less than 10% of the effect", "no source": "what was found recovers less than 10% of the effect" }[kind];
  const go = element("button", { type: "button", class: "source" }, quoted(source.source));
  go.addEventListener("click", () => {
    tokenAt(source.source_position).scrollIntoView({ block: "center" });
    wayBack(target);
  });
  const tag = element("span", { class: `tag ${isNone ? "none" : kind}`, title: `${why}; the effect of its swap alone: ${nats(source.effect)}${isOneToken ? " (KL)" : ""}` }, kind);
  const bar = element("span", { class: "bar", "aria-hidden": "true" }, element("span"));
  bar.firstChild.style.width = `${100 * Math.min(1, Math.max(0, source.recovered_so_far))}%`;
  const swapped = source.probability_swapped === null ? "" : `; ${percent(target.probability)} → ${percent(source.probability_swapped)} without it alone`;
  const too = source.rank > 1 ? " with it, too" : "";
  return element("li", {}, go, " ", tag, " ", element("small", {}, `${target.position - source.source_position} tokens before`), bar, element("small", {}, `about ${whole(source.recovered_so_far)} recovered${too}${swapped}`));
}

function fillTarget(target) {
  const words = data.contrast ? `“${data.contrast[0]}”, not “${data.contrast[1]}”` : ofTarget(target);
  const parts = [heading(words, target.position), oneLine(target), alternatives(target)];
  if (!isOneToken) {
    const side = target.total_effect > 0 ? "for" : "against";
    parts.push(element("p", {}, `As a whole, the distant text speaks ${side} ${data.contrast ? `“${data.contrast[0]}”` : "these words"}.`));
  }
  if (target.no_source) parts.push(element("p", {}, bold("No source."), " What was found recovers less than 10% of the effect: the prediction depends on many tokens a little. Tried:"));
  parts.push(element("ol", { class: "sources" }, ...target.sources.map((source) => sourceItem(target, source))));
  parts.push(element("p", {}, `Together, ${target.is_narrowed ? "measured" : "estimated"}: `, bold(whole(target.recovered)), " recovered."));
  if (!target.is_narrowed) {
    parts.push(element("p", {}, `Whole passages: the time was over before they were narrowed down to ${data.unit}s.`));
    if (isOneToken) parts.push(explaining(target.position));
  }
  card.replaceChildren(...parts);
}

function fillOther(position) {
  const place = placeOf.get(position);
  const of = (name) => data.losses[name][place];
  card.replaceChildren(
    heading(quoted(data.pieces[position - data.first_token]), position),
    element("p", { class: "line" }, "Not explained. ", bold(percent(Math.exp(-of("long_context_loss")))), ` ${withDistant}, about `, bold(percent(Math.exp(-of("window_swapped_loss")))), ` without the distant part (measured with ${windowTokens} near tokens). Its sources:`),
    explaining(position),
  );
}

/** Where a token's first visible character stands; its blank may end the line before. */
function placeOnPage(token) {
  const range = document.createRange();
  const first = token.textContent.search(/\S/);
  if (first < 0) return null;
  range.setStart(token.firstChild, first);
  range.setEnd(token.firstChild, first + 1);
  return range.getBoundingClientRect();
}

/** Put the card under the line of a token on a phone, and beside the text elsewhere, in the list of predictions. */
function placeCard(token, position) {
  if (!isPhone.matches) {
    const listed = at("targets").querySelector(`:scope > li > [data-position="${position}"]`);
    if (listed) listed.after(card);
    else aside.prepend(card);
    // The list alone is scrolled: the text stays where it was clicked.
    const [own, frame] = [card, aside].map((one) => one.getBoundingClientRect());
    if (own.top < frame.top) aside.scrollTop -= frame.top - own.top;
    else if (own.bottom > frame.bottom) aside.scrollTop += Math.min(own.top - frame.top, own.bottom - frame.bottom);
    return;
  }
  card.remove();
  const { bottom } = placeOnPage(token) ?? token.getBoundingClientRect();
  let next = token.nextElementSibling;
  while (next && !(placeOnPage(next)?.top >= bottom - 2)) next = next.nextElementSibling;
  at("text").insertBefore(card, next);
}

// A choice -------------------------------------------------------------------------------------------------

function wayBack(target) {
  const token = tokenAt(target.position);
  at("back").hidden = false;
  at("back").textContent = `↩ back to ${quoted(target.token)}`;
  at("back").onclick = () => {
    token.scrollIntoView({ block: "center" });
    at("back").hidden = true;
  };
}

function choose(position, scrolls) {
  const target = ofTargets.get(position);
  chosen = position;
  at("back").hidden = true;
  for (const token of tokens) {
    token.classList.remove("chosen", "chosen-part", "source", "near");
    token.removeAttribute("data-rank");
  }
  for (const button of at("targets").querySelectorAll(":scope > li > button")) button.setAttribute("aria-current", Number(button.dataset.position) === position);
  const token = visibleAt(position);
  if (target) {
    fillTarget(target);
    if (target.end === position + 1) token.classList.add("chosen");
    else for (let place = position; place < target.end; place += 1) tokenAt(place).classList.add("chosen-part");
    for (let place = target.near_position; place < position; place += 1) tokenAt(place).classList.add("near");
    for (const source of target.sources) {
      for (let place = source.source_position; place < source.source_end; place += 1) tokenAt(place).classList.add("source");
      let last = source.source_end - 1;
      while (last > source.source_position && /\n$|^$/.test(data.pieces[last - data.first_token])) last -= 1;
      tokenAt(last).dataset.rank = source.rank;
    }
  } else {
    fillOther(position);
    token.classList.add("chosen");
  }
  placeCard(target ? visibleAt(target.end - 1) : token, position);
  if (scrolls) token.scrollIntoView({ block: "nearest" });
}

const targetAt = (position) => data.targets.find((target) => position >= target.position && position < target.end)?.position ?? (placeOf.has(position) ? position : null);

at("text").addEventListener("click", (event) => {
  const token = event.target.closest(".token");
  const position = token && targetAt(Number(token.dataset.position));
  if (position !== null) choose(position, false);
});

for (const target of data.targets) {
  for (let position = target.position; position < target.end; position += 1) tokenAt(position).classList.add("target");
  const token = tokenAt(target.position);
  token.tabIndex = 0;
  token.setAttribute("role", "button");
  token.addEventListener("keydown", (event) => {
    if (event.key === "Enter") choose(target.position, false);
  });
}

document.addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step || event.ctrlKey || event.altKey || event.metaKey || !data.targets.length) return;
  const positions = data.targets.map((target) => target.position);
  const next = step > 0 ? positions.find((position) => position > chosen) : positions.findLast((position) => position < chosen);
  choose(next ?? chosen ?? positions[0], true);
  event.preventDefault();
});

// The list -------------------------------------------------------------------------------------------------

function listed(position, piece, number, verdict) {
  const context = element("span", { class: "context" }, element("bdi", {}, near(position), bold(piece.trim() ? piece : quoted(piece))));
  const head = element("span", { class: "head" }, context, element("span", { class: "number" }, number));
  const button = element("button", { type: "button", "data-position": position }, head, element("span", { class: "told" }, verdict));
  button.addEventListener("click", () => choose(position, true));
  return element("li", {}, button);
}

const toldRecovered = (target) => `${target.is_narrowed ? "" : "about "}${whole(target.recovered)} recovered`;
const byEffect = [...data.targets].sort((one, other) => other.total_effect - one.total_effect);
const list = byEffect.map((target) => {
  const number = data.contrast ? times(data.contrast[2]) : `${percent(target.probability_without)} → ${percent(target.probability)}`;
  const verdict = target.no_source ? element("i", {}, "no source") : `${toldRecovered(target)} by ${target.is_narrowed ? target.sources.map((source) => quoted(source.source)).join(", ") : `${target.sources.length} ${target.sources.length > 1 ? "passages" : "passage"}`}`;
  return listed(target.position, target.token, number, verdict);
});
const missing = data.wanted.filter((position) => !ofTargets.has(position));
for (const position of missing) {
  tokenAt(position).classList.add("missing");
  list.push(listed(position, data.pieces[position - data.first_token], "", element("i", {}, "not explained")));
}
if (numNarrowed < data.wanted.length && isOneToken) {
  at("missing").append(
    element("p", {}, `${numNarrowed} of ${data.wanted.length} narrowed down to ${data.unit}s in the time. The others, too:`),
    data.losses.position.length > 1 ? explainingAll() : explaining(data.wanted[0]),
  );
}

// The rest -------------------------------------------------------------------------------------------------

document.title = `${data.name}, explained`;
at("name").textContent = data.name;
at("about").textContent = `${data.model} in ${data.dtype}; sources: ${data.unit}s${data.budget === null ? "" : ", alone or several in a row"}.${data.first_token ? ` Gray: the first ${data.first_token.toLocaleString("en")} tokens, which were not read.` : ""}`;
at("summary").append(...data.summary.map((sentence) => element("li", {}, sentence)));
at("near-meaning").textContent = `the last ${data.near_tokens} tokens before the prediction, which stand in every context and are never sources.`;
at("effect-meaning").textContent = data.contrast !== null
  ? `by how much log p(“${data.contrast[0]}”) − log p(“${data.contrast[1]}”) falls, in nats, when another document’s tokens stand in place of a source, or of all distant ones.`
  : data.is_whole
    ? "by how much the sum of the words’ log-probabilities falls, in nats, when another document’s tokens stand in place of a source, or of all distant ones."
    : "how far the prediction moves when another document’s tokens stand in place of a source, or of all distant ones: KL(whole text ‖ without it), in nats. It never sees the target token.";
at("color-meaning").textContent = `the effect of all distant tokens; of tokens that are not explained measured with ${windowTokens} near ones, which neighbors share (“about”).`;
if (data.before) {
  const isLong = data.before.length > 2000; // a window on it, at its end
  const unread = element("span", { class: `unread${isLong ? " long" : ""}`, title: "not read: before the tokens that are measured", tabindex: isLong ? 0 : -1 }, data.before);
  at("text").append(unread);
  unread.scrollTop = unread.scrollHeight;
  document.querySelector(".unread-legend").hidden = false;
}
at("text").append(...tokens);
at("targets").append(...list);
// First a prediction whose sources recover it; on a phone, whichever is tapped.
card.remove();
const isTelling = (target) => target.recovered > 0.5 && target.probability >= target.probability_without;
if (byEffect.length && !isPhone.matches) choose((byEffect.find(isTelling) ?? byEffect[0]).position, false);
